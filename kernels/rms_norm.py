"""Root-mean-square norm, plain and gated, as the model's layers use it.

``rms_norm(x) = w * x / sqrt(mean(x^2) + eps)``; the gated form multiplies that by ``sigmoid(gate)``.
Both are computed in at least float32, whatever the dtype of ``x``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def reference_rms_norm(x: Tensor, weight: Tensor, eps: float, gate: Tensor | None = None) -> Tensor:
    """The equations above in the dtype of ``x``; ``x`` and ``gate`` are ``[..., D]``, ``weight`` is ``[D]``."""
    normed = weight * x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps)
    return normed if gate is None else normed * torch.sigmoid(gate)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm over the last dimension, ``[..., D]`` in the dtype of ``x``; ``weight`` is ``[D]``."""
    return _normed(widened(x), eps).to(x.dtype) * weight


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``rms_norm(x) * sigmoid(gate)``, ``[..., D]`` in the dtype of ``gate``; ``weight`` is ``[D]``."""
    return (_normed(widened(x), eps) * widened(weight) * widened(gate).sigmoid()).to(gate.dtype)


def widened(x: Tensor) -> Tensor:
    """``x`` in float32, or float64 where it is that already."""
    return x if x.dtype in {torch.float32, torch.float64} else x.float()


def _normed(x: Tensor, eps: float) -> Tensor:
    # One pass over x for its norm, where squaring it first would take three.
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * (norm.square() / x.shape[-1] + eps).rsqrt()
