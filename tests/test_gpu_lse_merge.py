"""Joining parts of attention on the GPU, under Triton's interpreter, against sums written out in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evalgate.kernels.gpu.lse_merge import UNIT, lse_merge
from evalgate.kernels.lse_merge import Part

TIGHT = 2e-6
"""float32 weights and sums of up to 130 parts of size 1."""
ROUNDED = 2**-8
"""Half a unit in the last place of a bfloat16 of size 2."""


def expected(parts: Part) -> Part:
    """``sum_p exp(lse_p) o_p / sum_p exp(lse_p)`` in float64, for logs of any size."""
    lse = parts.lse.double()
    weights = lse.softmax(dim=-1).nan_to_num()[..., None]
    seen = torch.where(weights > 0, parts.output.double(), 0.0)
    return Part((weights * seen).sum(dim=-2), lse.logsumexp(dim=-1))


def random(*shape: int, width: int, size: float) -> Part:
    """Parts ``[..., P]`` with logs of about ``size``."""
    generator = torch.Generator().manual_seed(7)
    return Part(torch.randn(*shape, width, generator=generator), torch.randn(*shape, generator=generator).mul(size))


def close(found: Part, want: Part, tolerance: float) -> None:
    """Means by size, logs by relative size."""
    torch.testing.assert_close(found.output.double(), want.output, atol=tolerance, rtol=0)
    torch.testing.assert_close(found.lse.double(), want.lse, atol=TIGHT, rtol=TIGHT)


@pytest.mark.parametrize("count", [1, 9, 130])
@pytest.mark.parametrize("width", [16, 200])
def test_parts_make_the_weighted_mean(count: int, width: int) -> None:
    """Any number of parts, of widths that fill a block or do not."""
    parts = random(2, count, width=width, size=3.0)
    close(lse_merge(parts, torch.float32), expected(parts), TIGHT)


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_logs_of_any_size_make_the_weighted_mean(shift: float) -> None:
    """Nothing is exponentiated before the largest log was taken off; the steps are such as float32 holds exactly."""
    parts = random(5, 12, width=32, size=1.0)
    parts = Part(parts.output, shift + parts.lse.mul(64).round().div(64))
    close(lse_merge(parts, torch.float32), expected(parts), TIGHT)


def test_what_an_empty_part_holds_is_never_read() -> None:
    """NaN beside a log of -inf is not seen, wherever it stands; no part at all gives 0 and -inf."""
    parts = random(4, 19, width=48, size=2.0)
    hidden = torch.rand(4, 19, generator=torch.Generator().manual_seed(1)) < 0.5
    hidden[2], hidden[3, 1:] = True, True
    parts.lse[hidden], parts.output[hidden] = -torch.inf, torch.nan
    found = lse_merge(parts, torch.float32)
    close(found, expected(parts), TIGHT)
    assert torch.equal(found.output[2], torch.zeros(48))
    assert found.lse[2] == -torch.inf


@pytest.mark.parametrize("more", [1, UNIT, 3 * UNIT + 1])
def test_empty_parts_at_the_end_change_no_bit(more: int) -> None:
    """A larger batch may have room for more splits than a row needs."""
    parts = random(3, 13, width=40, size=4.0)
    empty = Part(torch.full((3, more, 40), torch.nan), torch.full((3, more), -torch.inf))
    longer = Part(*(torch.cat(pair, dim=1) for pair in zip(parts, empty, strict=True)))
    for found, want in zip(lse_merge(longer, torch.float32), lse_merge(parts, torch.float32), strict=True):
        assert torch.equal(found, want)


def test_nan_stays_visible_and_in_its_row() -> None:
    """A NaN log of one row makes that row NaN and no other."""
    parts = random(3, 9, width=16, size=1.0)
    parts.lse[1, 4] = torch.nan
    found = lse_merge(parts, torch.float32)
    assert torch.isnan(found.output).any(dim=-1).tolist() == [False, True, False]
    assert torch.isnan(found.lse).tolist() == [False, True, False]


def test_no_rows_no_parts_and_views() -> None:
    """Nothing to do is no error, no part sees nothing, and a transposed view is read as it is indexed."""
    assert lse_merge(Part(torch.empty(0, 4, 16), torch.empty(0, 4)), torch.float32).output.shape == (0, 16)
    none = lse_merge(Part(torch.empty(2, 0, 16), torch.empty(2, 0)), torch.float32)
    assert not none.output.any()
    assert (none.lse == -torch.inf).all()
    parts = random(6, 5, width=16, size=1.0)
    turned = Part(parts.output.transpose(0, 1), parts.lse.T)
    close(lse_merge(turned, torch.float32), expected(turned), TIGHT)


def test_the_result_is_rounded_once() -> None:
    """In bfloat16, the mean is the float32 mean rounded to the nearest."""
    parts = random(3, 9, width=24, size=1.0)
    found: Tensor = lse_merge(parts, torch.bfloat16).output
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, lse_merge(parts, torch.float32).output.bfloat16())
    torch.testing.assert_close(found.double(), expected(parts).output, atol=ROUNDED, rtol=0)
