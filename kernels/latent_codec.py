"""Cached latents in eight bits: symmetric, with one scale for each token and part.

A token's row is its latent (width L) and its shared key part; the two have different sizes, so each has its scale.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LEVELS = 127
"""Largest code; -128 is not used, so that the codes are symmetric."""


class EncodedLatents(NamedTuple):
    """``codes`` are int8 ``[..., L + R]``; ``scales`` are float32 ``[..., 2]``: of the latent and the shared part."""

    codes: Tensor
    scales: Tensor


def encode_latents(rows: Tensor, latent: int) -> EncodedLatents:
    """Round ``[..., L + R]`` rows; ``latent`` is L."""
    parts = rows.float().split_with_sizes([latent, rows.shape[-1] - latent], dim=-1)
    scales = torch.stack([part.abs().amax(dim=-1) / LEVELS for part in parts], dim=-1)
    safe = scales.masked_fill(scales == 0.0, 1.0)
    codes = [(part / safe[..., i : i + 1]).round().to(torch.int8) for i, part in enumerate(parts)]
    return EncodedLatents(torch.cat(codes, dim=-1), scales)


def decode_latents(encoded: EncodedLatents, latent: int, dtype: torch.dtype) -> Tensor:
    """Codes times scales, ``[..., L + R]`` in ``dtype``."""
    parts = encoded.codes.split_with_sizes([latent, encoded.codes.shape[-1] - latent], dim=-1)
    wide = [part.float() * encoded.scales[..., i : i + 1] for i, part in enumerate(parts)]
    return torch.cat(wide, dim=-1).to(dtype)
