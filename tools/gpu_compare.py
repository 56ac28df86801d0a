"""One comparison of a kernel with its equation, and memory full of NaN for a kernel to write."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

EXACT = 0.0
FLOAT32 = 2e-4
"""Sums of float32 products in another order, over a few thousand terms."""
BF16 = 3e-2
"""Tiles and outputs rounded to bfloat16 (2^-9 each), a few times on the way through a chunk."""
SMALL = 1 / 16
"""Numbers smaller than this share of the largest may be as wrong as those of that size: sums cancel."""

Found = TypeVar("Found")


class Check(NamedTuple):
    """One comparison: the worst error as a share of its row's largest number, NaN where one was not written."""

    kernel: str
    what: str
    worst: float
    allowed: float

    @property
    def ok(self) -> bool:
        """Whether the error is a number, and allowed."""
        return self.worst <= self.allowed


def check(kernel: str, what: str, got: Tensor, want: Tensor, allowed: float) -> Check:
    """Compare row by row, a row being the last dimension; rows are as large as ``SMALL`` of the largest at least."""
    if not want.numel():
        return Check(kernel, what, 0.0, allowed)
    error, size = (got.double() - want.double()).abs(), want.double().abs()
    least = (SMALL * size.max()).clamp(min=torch.finfo(torch.float32).tiny)
    worst = (error.amax(dim=-1) / size.amax(dim=-1).maximum(least)).max()
    return Check(kernel, what, worst.item(), allowed)


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that is not written first is NaN: torch fills it so where it is asked to be deterministic."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(mode=False)


def called(kernel: Callable[[], Found]) -> Found:
    """What a kernel puts out where memory was NaN."""
    with poisoned():
        return kernel()


def limit_of(dtype: torch.dtype) -> float:
    """Allowed error of outputs."""
    return FLOAT32 if dtype == torch.float32 else BF16


def name_of(dtype: torch.dtype) -> str:
    """In words."""
    return "fp32" if dtype == torch.float32 else "bf16"
