"""Lossy forms of a recurrent state ``[..., K, V]``: bfloat16, int8, int4, or its r strongest singular directions.

int8 and int4 are symmetric with one scale for each key channel (a row of the matrix): the decay acts on key channels,
so that is where sizes differ.  int4 holds two codes in a byte.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

IntWidth = Literal[4, 8]


class Encoded(NamedTuple):
    """The tensors that a compressed state consists of."""

    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that they hold."""
        return sum(x.numel() * x.element_size() for x in self.tensors)


def encode_bf16(state: Tensor) -> Encoded:
    """Keep eight bits of mantissa."""
    return Encoded((state.to(torch.bfloat16),))


def encode_int(state: Tensor, bits: IntWidth) -> Encoded:
    """Codes (int8, or uint8 with two codes a byte; V must be even then) and float32 scales ``[..., K]``."""
    levels = 2 ** (bits - 1) - 1
    scales = state.abs().amax(dim=-1) / levels
    codes = (state / scales.masked_fill(scales == 0.0, 1.0).unsqueeze(-1)).round().to(torch.int8)
    return Encoded((codes if bits == 8 else _pack(codes), scales.float()))


def encode_rank(state: Tensor, rank: int) -> Encoded:
    """The truncated singular value decomposition as two factors, ``[..., K, r]`` and ``[..., r, V]``."""
    # The decomposition of one matrix that holds NaN would fail for all of them; it stays NaN, on its own.
    sound = state.isfinite().all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
    left, values, right = torch.linalg.svd(state.where(sound, 0.0), full_matrices=False)
    scaled = left[..., :rank] * values[..., None, :rank]
    return Encoded((scaled.masked_fill(~sound, torch.nan), right[..., :rank, :]))


def decode_bf16(encoded: Encoded, dtype: torch.dtype) -> Tensor:
    """Widen to ``dtype``."""
    (rounded,) = encoded.tensors
    return rounded.to(dtype)


def decode_int(encoded: Encoded, bits: IntWidth, dtype: torch.dtype) -> Tensor:
    """Codes times scales."""
    codes, scales = encoded.tensors
    return (codes if bits == 8 else _unpack(codes)).to(dtype) * scales.to(dtype).unsqueeze(-1)


def decode_rank(encoded: Encoded, dtype: torch.dtype) -> Tensor:
    """The product of the factors."""
    left, right = encoded.tensors
    return (left @ right).to(dtype)


def _pack(codes: Tensor) -> Tensor:
    pairs = torch.unflatten((codes + 8).to(torch.uint8), -1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4)


def _unpack(packed: Tensor) -> Tensor:
    pair = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    return pair.to(torch.int8) - 8
