"""Tails of the binomial, Clopper-Pearson bounds and the McNemar p-value: what is shown, in floats."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from scipy.special import betainc, betaincc, betaincinv

Number = int | float | Decimal | Fraction
"""A probability as it is written down; see ``exact``."""


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


def mcnemar(b: int, c: int) -> float:
    """Exact one-sided McNemar p-value: P(Bin(b + c, 1/2) >= b); 1 where nothing is discordant."""
    return binom_sf(b, b + c, 0.5)


def _check_counts(k: int, n: int) -> None:
    if n <= 0 or not 0 <= k <= n:
        raise ValueError(f"found {k} of {n}, expected 0 <= k <= n and n > 0")
