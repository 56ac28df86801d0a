"""What a test does with a cell whose true recall is known: exact chances and cost under looks, in floats."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

from evalgate.stats.binomial import Number, binom_sf, exact

if TYPE_CHECKING:
    import numpy.typing as npt

SEED_CAP = 10_000
"""Most seeds that ``seeds_to_pass`` will suggest."""


class Chances(NamedTuple):
    """What becomes of one cell."""

    passes: float
    blocks: float
    expected_n: float
    """Seeds that are asked on average."""
    decided: tuple[float, ...]
    """Chance that it has passed or blocked by each look."""


def chances(
    looks: Sequence[int],
    pass_at: Sequence[int | None],
    block_at: Sequence[int | None],
    recall: float,
) -> Chances:
    """Follow a cell of true ``recall`` over the looks: it passes at k >= pass_at, blocks at k <= block_at, or goes on.

    A boundary of None is never crossed.
    """
    alive = np.ones(1)
    passes = blocks = expected = 0.0
    decided: list[float] = []
    for (before, n), least, most in zip(pairwise([0, *looks]), pass_at, block_at, strict=True):
        expected += (n - before) * float(alive.sum())
        alive = np.convolve(alive, _pmf(n - before, recall))
        if least is not None:
            passes += float(alive[least:].sum())
            alive[least:] = 0
        if most is not None:
            blocks += float(alive[: most + 1].sum())
            alive[: most + 1] = 0
        decided.append(passes + blocks)
    return Chances(passes, blocks, expected, tuple(decided))


def expected_longest(looks: Sequence[int], decided: Sequence[float], cells: int) -> float:
    """Mean seeds of the cell that takes longest, of ``cells`` independent ones that are ``decided`` by each look.

    What a haystack that all cells share costs: it is drawn while any cell is open.
    """
    return sum(
        (n - before) * (1 - by**cells) for (before, n), by in zip(pairwise([0, *looks]), [0.0, *decided], strict=False)
    )


def seeds_to_pass(
    k: int, n: int, bar: Number, alpha: Number, *, breaks: int = 0, margin: Number | None = None
) -> int | None:
    """Smallest m > n at which the observed shares would pass, up to ``SEED_CAP``; None where none would.

    The shares are k/n against ``bar`` and, where ``margin`` is given, breaks/n against it; m trials are taken to
    hold floor(m k/n) successes and ceil(m breaks/n) breaks. A hint for planning: it decides nothing.
    """
    if n == 0 or Fraction(k, n) <= exact(bar) or (margin is not None and Fraction(breaks, n) >= exact(margin)):
        return None
    level = float(exact(alpha))
    for m in range(n + 1, SEED_CAP + 1):
        if binom_sf(m * k // n, m, bar) > level:
            continue
        kept = m - -(-m * breaks // n)
        if margin is None or binom_sf(kept, m, 1 - exact(margin)) <= level:
            return m
    return None


def _pmf(n: int, p: float) -> npt.NDArray[np.float64]:
    """(n + 1,) float64: P(X = k) for X ~ Bin(n, p)."""
    k = np.arange(n + 1)
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    chance: npt.NDArray[np.float64] = np.exp(ways + xlogy(k, p) + xlog1py(n - k, -p))
    return chance
