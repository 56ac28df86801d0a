"""The gates of Kimi Delta Attention inside a Triton kernel: parts that the prefill and the decode kernel share.

Both take raw projections, so both must turn them into decays, strengths and unit vectors by the same operations.
Everything is float32.  No exponent is positive, so a gate of any size underflows to its limit and never overflows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from evalgate.kernels.kda_gate import L2_EPS as _EPS

L2_EPS: tl.constexpr = tl.constexpr(_EPS)


@triton.jit
def softplus(x: tl.tensor) -> tl.tensor:
    """``log(1 + exp(x))``, with a small relative error also where it is close to 0.

    Slow channels live there: a decay of 1e-6 a token must come out right to a few parts in ten million, or a million
    tokens later their sum is wrong.  ``log(1 + y)`` would round y away, so it is ``2 atanh(y / (2 + y))`` as a series,
    whose argument is at most 1/3: eight terms leave 2e-9.
    """
    y = tl.exp(-tl.abs(x))
    s = y / (2.0 + y)
    s2 = s * s
    series = 1.0 / 13.0 + s2 * (1.0 / 15.0)
    series = 1.0 / 11.0 + s2 * series
    series = 1.0 / 9.0 + s2 * series
    series = 1.0 / 7.0 + s2 * series
    series = 1.0 / 5.0 + s2 * series
    series = 1.0 / 3.0 + s2 * series
    return tl.maximum(x, 0.0) + 2.0 * s * (1.0 + s2 * series)


@triton.jit
def log_decay(f: tl.tensor, a_log: tl.tensor, dt_bias: tl.tensor) -> tl.tensor:
    """``-exp(a_log) * softplus(f + dt_bias)``, at most 0; all float32, of shapes that broadcast."""
    return -tl.exp(a_log) * softplus(f + dt_bias)


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """``1 / (1 + exp(-x))`` without a positive exponent."""
    y = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, y) / (1.0 + y)


@triton.jit
def l2norm(x: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """``scale * x / sqrt(sum(x^2) + 1e-6)`` over the last axis of a float32 tile, whose padding holds zeros."""
    norm = tl.sqrt(tl.sum(x * x, axis=-1, keep_dims=True) + L2_EPS)
    return x * (scale / norm)
