"""Short causal convolution over time, one filter for each channel, followed by SiLU.

``y_t = silu(sum_j w_j * x_{t - W + 1 + j})`` with W = 4 taps in Kimi Linear.
Its state is the last W - 1 inputs, so a stretch may be cut anywhere, even into pieces shorter than the filter.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from evalgate.kernels.rms_norm import widened


class ConvResult(NamedTuple):
    """Output ``[B, T, C]`` in at least float32 and the state after it ``[B, W - 1, C]``, oldest input first."""

    output: Tensor
    state: Tensor


def reference_short_conv(x: Tensor, taps: Tensor, state: Tensor) -> ConvResult:
    """Token by token, exactly as the equation above; ``x`` is ``[B, T, C]``, ``taps`` is ``[W, C]``, oldest first."""
    outputs = []
    for t in range(x.shape[1]):
        window = torch.cat([state, x[:, t : t + 1]], dim=1)
        summed = (window * taps).sum(dim=1)
        outputs.append(summed * torch.sigmoid(summed))
        state = window[:, 1:]
    return ConvResult(torch.stack(outputs, dim=1), state)


def short_conv(x: Tensor, taps: Tensor, state: Tensor, lengths: Tensor | None = None) -> ConvResult:
    """A stretch of T tokens for each row.

    ``x`` is ``[B, T, C]``, ``taps`` is ``[W, C]`` (oldest input first), ``state`` is ``[B, W - 1, C]``.
    ``lengths`` (int64 ``[B]``) says how many tokens of each row are real; the rest is padding at the end, whose
    output is meaningless and which leaves no trace in the state.  The state keeps the dtype of ``x``, whose sums are
    taken and left in at least float32.
    """
    width, length = taps.shape[0], x.shape[1]
    taps = widened(taps)
    inputs = taps.new_empty(len(x), width - 1 + length, x.shape[2])
    inputs[:, : width - 1], inputs[:, width - 1 :] = state, x
    summed = inputs[:, :length] * taps[0]
    for tap in range(1, width):
        summed.addcmul_(inputs[:, tap : tap + length], taps[tap])
    output = torch.nn.functional.silu(summed, inplace=True)
    if lengths is None:
        return ConvResult(output, inputs[:, length:].to(x.dtype))
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    last = lengths[:, None] + torch.arange(width - 1, device=x.device)
    return ConvResult(output, inputs[rows, last].to(x.dtype))
