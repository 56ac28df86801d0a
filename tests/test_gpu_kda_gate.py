"""The gates that the GPU kernels share, under Triton's interpreter, against the equations in float64."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from evalgate.kernels.gpu.kda_gate import l2norm, log_decay, sigmoid
from evalgate.kernels.kda_gate import L2_EPS

FEW_ULPS = 1e-6
"""A dozen float32 operations, each exact to 6e-8 of its result."""
EXPONENT = 2e-7
"""What rounding x itself to float32 does to exp(x), relative, for each unit of x."""


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _gates(f: tl.tensor, a_log: tl.tensor, bias: tl.tensor, decay: tl.tensor, gate: tl.tensor, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    x = tl.load(f + at)
    tl.store(decay + at, log_decay(x, tl.load(a_log + at), tl.load(bias + at)))
    tl.store(gate + at, sigmoid(x))


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def _norms(x: tl.tensor, out: tl.tensor, scale: tl.tensor, ROWS: tl.constexpr, N: tl.constexpr) -> None:
    at = tl.arange(0, ROWS)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, l2norm(tl.load(x + at), scale))


def gates(f: Tensor, a_log: float, bias: float) -> tuple[Tensor, Tensor]:
    """Log decay and sigmoid of a float32 vector whose length is a power of two."""
    decay, gate = torch.full_like(f, torch.nan), torch.full_like(f, torch.nan)
    _gates[(1,)](f, torch.full_like(f, a_log), torch.full_like(f, bias), decay, gate, len(f))
    return decay, gate


@pytest.mark.parametrize("a_log", [-3.0, 0.0, 2.77])
@pytest.mark.parametrize("bias", [0.0, -6.9])
def test_decay_is_right_to_a_few_ulps_from_slow_to_fast(a_log: float, bias: float) -> None:
    """A relative bound at every size: channels that keep a million tokens and ones that forget at once."""
    f = torch.linspace(-30.0, 44.0, 1024)
    sums = f.double() + torch.tensor(bias).double()
    expected = -torch.exp(torch.tensor(a_log).double()) * torch.nn.functional.softplus(sums, threshold=1e3)
    found = gates(f, a_log, bias)[0].double()
    allowed = FEW_ULPS + EXPONENT * (sums.abs() + abs(a_log))
    assert (found < 0.0).all()
    assert ((found - expected).abs() <= allowed * expected.abs()).all()


def test_sigmoid_is_right_to_a_few_ulps() -> None:
    """A relative bound at every size, small values too."""
    f = torch.linspace(-80.0, 80.0, 1024)
    expected = f.double().sigmoid()
    found = gates(f, 0.0, 0.0)[1].double()
    assert ((found - expected).abs() <= (FEW_ULPS + EXPONENT * f.double().abs()) * expected).all()


def test_limits_stay_limits_and_nan_stays_visible() -> None:
    """Inputs of any size give the limits, and NaN gives NaN: no clamp hides it."""
    f = torch.tensor([-torch.inf, -1e30, 1e30, torch.nan])
    decay, gate = gates(f, 0.0, 0.0)
    assert decay[:2].tolist() == [0.0, 0.0]
    assert decay[2] == -1e30
    assert gate[:3].tolist() == [0.0, 0.0, 1.0]
    assert decay[3].isnan()
    assert gate[3].isnan()


@pytest.mark.parametrize("size", [1e-20, 1e-4, 1.0, 1e15])
@pytest.mark.parametrize("width", [16, 128])
def test_norm_is_scaled_and_padded_with_the_published_epsilon(size: float, width: int) -> None:
    """Unit vectors times the scale; rows near 0 shrink by the epsilon under the root; zeros stay zeros."""
    x = torch.randn(4, width, generator=torch.Generator().manual_seed(width)) * size
    x[2] = 0.0
    out = torch.full_like(x, torch.nan)
    _norms[(1,)](x, out, width**-0.5, 4, width)
    wide = x.double()
    expected = wide / (wide.square().sum(dim=-1, keepdim=True) + L2_EPS).sqrt() * width**-0.5
    torch.testing.assert_close(out.double(), expected, rtol=FEW_ULPS, atol=0.0)
