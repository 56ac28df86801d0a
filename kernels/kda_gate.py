"""The inputs of Kimi Delta Attention: the log decay of each key channel, and normalised queries and keys.

``g = -exp(A_log) * softplus(f + dt_bias)`` is unbounded below: some channels forget within one token, on purpose.
``l2norm(x) = x / sqrt(sum(x^2) + 1e-6)``, the form that the published weights were trained with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evalgate.kernels.rms_norm import widened

L2_EPS = 1e-6


def reference_kda_gate(f: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """The equation above in the dtype of ``f``, ``[..., H, K]``; ``a_log`` is ``[H]``, ``dt_bias`` is ``[H, K]``."""
    return -torch.exp(a_log)[:, None] * torch.log1p(torch.exp(f + dt_bias))


def kda_gate(f: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """Log decay ``g <= 0``, ``[..., H, K]`` in at least float32; same shapes as :func:`reference_kda_gate`."""
    # Above 20 softplus(x) is x to the last bit of float32, and exp(x) must not be asked for.
    softplus = torch.nn.functional.softplus(widened(f) + widened(dt_bias), threshold=20.0)
    return softplus * -widened(a_log).exp()[:, None]


def l2norm(x: Tensor, scale: float = 1.0) -> Tensor:
    """Normalise the last dimension to ``scale``, in at least float32."""
    wide = widened(x)
    norm: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return wide * (norm.square() + L2_EPS).rsqrt().mul(scale)
