"""The norms on a GPU, under Triton's interpreter, against the equation in float64 and the CPU form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from evalgate.kernels.gpu.rms_norm import add_rms_norm, gated_rms_norm, rms_norm
from evalgate.kernels.rms_norm import reference_rms_norm

EPS = 1e-5
ROUNDING = 1e-6
"""float32 against float64: a mean of up to 8,192 squares and a few products, relative."""
BF16 = 2.0**-8
"""Relative: one rounding to bfloat16."""


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """What is not written is NaN: torch fills new memory with it in its deterministic mode."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def rows(count: int, width: int, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """``[count, width]`` as a part of a wider tensor; rows differ in size by decades."""
    generator = torch.Generator().manual_seed(100 * width + seed)
    sizes = 10.0 ** torch.randint(-2, 3, (count, 1), generator=generator)
    return (torch.randn(count, width + 24, generator=generator) * sizes).to(dtype)[:, 8:-16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [16, 100, 128, 512, 2304, 8192])
def test_norm_is_the_equation(width: int, dtype: torch.dtype) -> None:
    """Every width, strided rows, more of them than one program takes and not a multiple of that; inputs unchanged."""
    x, weight = rows(2048 // width + 3, width, dtype=dtype), rows(1, width, seed=1)[0]
    before = x.clone()
    found = rms_norm(x, weight, EPS)
    assert found.dtype == dtype
    # bfloat16 is rounded twice, before the weight and after it, as on the CPU.
    rounding = ROUNDING if dtype == torch.float32 else 2 * BF16
    expected = reference_rms_norm(x.double(), weight.double(), EPS)
    torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=0.0)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [16, 128])
def test_gated_norm_is_the_equation(width: int, dtype: torch.dtype) -> None:
    """Heads of a core in float32, gates that are a part of a wider tensor in any dtype; rounded once, at the end."""
    core = torch.unflatten(rows(21 * 3, width), 0, (21, 3)).transpose(0, 1).contiguous().transpose(0, 1)
    gate = 9.0 * torch.randn(21, 3 * width + 8, generator=torch.Generator().manual_seed(width))
    gate = torch.unflatten(gate.to(dtype)[:, 8:], -1, (3, width))
    weight = rows(1, width, seed=1)[0]
    found = gated_rms_norm(core, gate, weight, EPS)
    expected = reference_rms_norm(core.double(), weight.double(), EPS, gate.double())
    assert found.dtype == dtype
    # A gate of size 40 is right to 40 roundings of its exponent.
    rounding = 5 * ROUNDING if dtype == torch.float32 else BF16
    torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sum_with_the_residual_is_kept_and_normed(dtype: torch.dtype) -> None:
    """The residual becomes the sum in its own precision, and the norm is bitwise the norm of that."""
    x, residual, weight = rows(5, 576, dtype=dtype), rows(5, 576, dtype=dtype, seed=1), rows(1, 576, seed=2)[0]
    total = x + residual
    found = add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(residual, total)
    assert torch.equal(found, rms_norm(total, weight, EPS))


@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_sizes_stay_apart(size: float) -> None:
    """Large rows do not overflow, small ones shrink by the epsilon under the root, zeros stay zeros."""
    x, weight = rows(6, 64) * size, rows(1, 64, seed=1)[0]
    x[2] = 0.0
    found = rms_norm(x, weight, EPS)
    torch.testing.assert_close(found.double(), reference_rms_norm(x.double(), weight.double(), EPS), rtol=ROUNDING,
                               atol=0.0)  # fmt: skip


def test_rows_do_not_know_each_other() -> None:
    """A row alone gives the bits that it gives among others, one of which is NaN."""
    x, weight = rows(40, 128), rows(1, 128, seed=1)[0]
    x[7] = torch.nan
    found = rms_norm(x, weight, EPS)
    assert found[7].isnan().all()
    assert found.isnan().sum() == 128
    for row in (0, 6, 8, 39):
        assert torch.equal(rms_norm(x[row : row + 1], weight, EPS)[0], found[row])
    assert rms_norm(x[:0], weight, EPS).shape == (0, 128)


def test_offsets_beyond_two_to_the_31st_do_not_wrap(tmp_path: Path) -> None:
    """Four rows that lie 2^30 numbers apart."""
    path, near = tmp_path / "rows", rows(4, 16, dtype=torch.bfloat16)
    x = torch.from_file(str(path), shared=True, size=3 * 2**30 + 16, dtype=torch.bfloat16)
    x = x.as_strided((4, 16), (2**30, 1))
    x[:] = near
    weight = rows(1, 16, seed=1)[0]
    assert torch.equal(rms_norm(x, weight, EPS), rms_norm(near, weight, EPS))
    path.unlink()
