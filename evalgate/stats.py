"""Exact binomial statistics of the gate: tails, Clopper-Pearson bounds, the integers that decide, McNemar.

What is shown (tails, bounds) is float by scipy.special.
What decides (``pass_min``, ``block_max``, ``breaks_max``, ``mcnemar_min``) is integer arithmetic on exact rationals,
so neither float error nor display rounding can move a verdict.
A float bar such as ``0.9`` means the decimal that it prints as, 9/10.
This module knows nothing of cells, policies or runs.

Sources: Clopper & Pearson 1934; McNemar 1947.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from scipy.special import betainc, betaincc, betaincinv

Number = int | float | Decimal | Fraction
"""A probability as it is written down; see ``exact``."""

SEED_CAP = 10_000
"""Most seeds that ``seeds_to_pass`` will suggest."""


class Interval(NamedTuple):
    """Bounds on a share, both within [0, 1]."""

    lower: float
    upper: float


def exact(value: Number) -> Fraction:
    """Return the rational that ``value`` means; a float means its shortest decimal form.

    Raises ValueError on NaN and infinity.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"found {value}, expected a finite number")
        return Fraction(repr(value))
    return Fraction(value)


def binom_sf(k: int, n: int, p: Number) -> float:
    """P(X >= k) for X ~ Bin(n, p). Note: at least k, not more than k."""
    if k <= 0:
        return 1.0
    return 0.0 if k > n else float(betainc(k, n - k + 1, float(p)))


def binom_cdf(k: int, n: int, p: Number) -> float:
    """P(X <= k) for X ~ Bin(n, p)."""
    if k < 0:
        return 0.0
    return 1.0 if k >= n else float(betaincc(k + 1, n - k, float(p)))


def lower_bound(k: int, n: int, alpha: Number) -> float:
    """One-sided Clopper-Pearson lower bound on the share behind k of n, at confidence 1 - alpha."""
    _check_counts(k, n)
    return 0.0 if k == 0 else float(betaincinv(k, n - k + 1, float(alpha)))


def upper_bound(k: int, n: int, alpha: Number) -> float:
    """One-sided Clopper-Pearson upper bound on the share behind k of n, at confidence 1 - alpha."""
    _check_counts(k, n)
    return 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - float(alpha)))


def clopper_pearson(k: int, n: int, alpha: Number = 0.05) -> Interval:
    """Two-sided Clopper-Pearson interval of k of n at confidence 1 - alpha; n = 0 has none (ValueError)."""
    half = exact(alpha) / 2
    return Interval(lower_bound(k, n, half), upper_bound(k, n, half))


def pass_min(n: int, bar: Number, alpha: Number) -> int | None:
    """Smallest k with P(X >= k | n, bar) <= alpha; None where not even k = n reaches it."""
    return _smallest_upper(n, exact(bar), exact(alpha))


def block_max(n: int, bar: Number, alpha: Number) -> int | None:
    """Largest k with P(X <= k | n, bar) <= alpha; None where not even k = 0 reaches it."""
    # At most k successes at p is at least n - k failures at 1 - p.
    failures = _smallest_upper(n, 1 - exact(bar), exact(alpha))
    return None if failures is None else n - failures


def breaks_max(n: int, margin: Number, alpha: Number) -> int | None:
    """Most breaks in n paired trials that still show a break rate of at most ``margin``; None: no number does."""
    kept = pass_min(n, 1 - exact(margin), alpha)
    return None if kept is None else n - kept


def mcnemar(b: int, c: int) -> float:
    """Exact one-sided McNemar p-value: P(Bin(b + c, 1/2) >= b); 1 where nothing is discordant."""
    return binom_sf(b, b + c, 0.5)


def mcnemar_min(discordant: int, alpha: Number) -> int | None:
    """Smallest b of ``discordant`` = b + c pairs with ``mcnemar(b, c)`` <= alpha; None: not even all of them."""
    return pass_min(discordant, Fraction(1, 2), alpha)


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


@lru_cache(maxsize=4096)
def _smallest_upper(n: int, p: Fraction, alpha: Fraction) -> int | None:
    """Smallest k with P(X >= k) <= alpha for X ~ Bin(n, p), in integers scaled by denominator(p) ** n."""
    if n < 0 or not 0 <= p <= 1 or not 0 < alpha < 1:
        raise ValueError(f"found n = {n}, p = {p}, alpha = {alpha}; expected n >= 0, 0 <= p <= 1, 0 < alpha < 1")
    if p in (0, 1):
        return 1 if p == 0 and n > 0 else None
    hit, miss = p.numerator, p.denominator - p.numerator
    limit = alpha.numerator * p.denominator**n
    term = tail = hit**n
    for k in range(n, 0, -1):
        if tail * alpha.denominator > limit:
            return k + 1 if k < n else None
        term = term * k * miss // ((n - k + 1) * hit)  # C(n, k - 1) hit^(k - 1) miss^(n - k + 1), always whole
        tail += term
    return 1 if n > 0 else None


def _check_counts(k: int, n: int) -> None:
    if n <= 0 or not 0 <= k <= n:
        raise ValueError(f"found {k} of {n}, expected 0 <= k <= n and n > 0")
