"""The integers that decide, at one look or at several: exact, by counting ways.

Under looks n_1 < ... < n_J the error that a test may have spent by look j is alpha n_j / n_J (Lan & DeMets, linear).
With X_j correct of n_j and T the bar, the PASS boundary k_j is the smallest k for which

    P(some X_i >= k_i, i < j, or X_j >= k | p = T) <= alpha n_j / n_J

and the BLOCK boundary is its mirror image; each is made as if the other were absent, which stopping at the other
can only make safer. What a look could not spend, for counts are whole, is left to the looks after it.
One look is the exact binomial test of a fixed n.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from evalgate.stats.binomial import Number, exact

HALF = Fraction(1, 2)


def pass_bounds(looks: Sequence[int], bar: Number, alpha: Number) -> tuple[int | None, ...]:
    """Smallest k that passes at each look; None where not even k = n does."""
    return _high(tuple(looks), exact(bar), exact(alpha))


def block_bounds(looks: Sequence[int], bar: Number, alpha: Number) -> tuple[int | None, ...]:
    """Largest k that blocks at each look; None where not even k = 0 does."""
    return _low(tuple(looks), exact(bar), exact(alpha))


def breaks_bounds(looks: Sequence[int], margin: Number, alpha: Number) -> tuple[int | None, ...]:
    """Most breaks that still show a break rate of at most ``margin``, at each look; None where no number does."""
    kept = pass_bounds(looks, 1 - exact(margin), alpha)
    return tuple(None if k is None else n - k for n, k in zip(looks, kept, strict=True))


def look_levels(looks: Sequence[int], alpha: Number) -> tuple[Fraction, ...]:
    """Share of ``alpha`` that each look has for itself: alpha (n_j - n_{j-1}) / n_J. They sum to alpha."""
    return tuple(exact(alpha) * (n - before) / looks[-1] for before, n in pairwise([0, *looks]))


def pass_min(n: int, bar: Number, alpha: Number) -> int | None:
    """Smallest k with P(X >= k | n, bar) <= alpha; None where not even k = n reaches it."""
    return pass_bounds((n,), bar, alpha)[0] if n else None


def block_max(n: int, bar: Number, alpha: Number) -> int | None:
    """Largest k with P(X <= k | n, bar) <= alpha; None where not even k = 0 reaches it."""
    return block_bounds((n,), bar, alpha)[0] if n else None


def breaks_max(n: int, margin: Number, alpha: Number) -> int | None:
    """Most breaks in n paired trials that still show a break rate of at most ``margin``; None: no number does."""
    return breaks_bounds((n,), margin, alpha)[0] if n else None


def mcnemar_min(discordant: int, alpha: Number) -> int | None:
    """Smallest b of ``discordant`` = b + c pairs with ``mcnemar(b, c)`` <= alpha; None: not even all of them."""
    return pass_min(discordant, HALF, alpha)


def _low(looks: tuple[int, ...], p: Fraction, alpha: Fraction) -> tuple[int | None, ...]:
    """Boundary under the count of what happens with chance p."""
    # Counting what is rare keeps the sums short: k successes at p are n - k failures at 1 - p.
    return _cross_low(looks, p, alpha) if p <= HALF else _mirrored(looks, _cross_high(looks, 1 - p, alpha))


def _high(looks: tuple[int, ...], p: Fraction, alpha: Fraction) -> tuple[int | None, ...]:
    """Boundary over the count of what happens with chance p."""
    return _cross_high(looks, p, alpha) if p <= HALF else _mirrored(looks, _cross_low(looks, 1 - p, alpha))


def _mirrored(looks: tuple[int, ...], bounds: tuple[int | None, ...]) -> tuple[int | None, ...]:
    return tuple(None if k is None else n - k for n, k in zip(looks, bounds, strict=True))


def _check(looks: tuple[int, ...], p: Fraction, alpha: Fraction) -> None:
    if not looks or not 0 <= p <= 1 or not 0 < alpha < 1 or any(n <= before for before, n in pairwise([0, *looks])):
        raise ValueError(
            f"found looks = {looks}, p = {p}, alpha = {alpha}; expected ascending looks, 0 <= p <= 1, 0 < alpha < 1"
        )


@lru_cache(maxsize=4096)
def _cross_low(looks: tuple[int, ...], p: Fraction, alpha: Fraction) -> tuple[int | None, ...]:
    """Largest count of each look such that the chance of ever being at or under them is at most alpha n_j / n_J."""
    _check(looks, p, alpha)
    counts: _Counts | None = None
    spent, found = 0, list[int | None]()
    for n in looks:
        spent *= p.denominator ** (n - (counts.n if counts else 0))
        counts = _Counts(n, p, counts)
        limit = alpha * n / looks[-1] * p.denominator**n
        while counts.first <= n and spent + counts.ways(counts.first) <= limit:
            spent += counts.ways(counts.first)
            counts.first += 1
        found.append(counts.first - 1 if counts.first else None)
    return tuple(found)


@lru_cache(maxsize=4096)
def _cross_high(looks: tuple[int, ...], p: Fraction, alpha: Fraction) -> tuple[int | None, ...]:
    """Smallest count of each look such that the chance of ever being at or over them is at most alpha n_j / n_J."""
    _check(looks, p, alpha)
    counts: _Counts | None = None
    found = list[int | None]()
    for n in looks:
        counts = _Counts(n, p, counts)
        crossed = p.denominator**n  # by this look, if the boundary were 0
        limit = alpha * n / looks[-1] * crossed
        bound = 0
        while crossed > limit:
            crossed -= counts.ways(bound)
            bound += 1
        counts.last = bound - 1
        found.append(bound if bound <= n else None)
    return tuple(found)


class _Counts:
    """In how many ways a count stands at x at a look without having crossed at an earlier one.

    Ways are whole numbers: the chance times denominator(p) ** n. They are worked out as they are asked for, as a
    boundary lies near one end of its counts.
    """

    def __init__(self, n: int, p: Fraction, before: _Counts | None) -> None:
        self.n = n
        self.first, self.last = 0, n
        """Counts that go on to the next look."""
        self._before = before
        self._trials = n - (before.n if before else 0)
        self._hit, self._miss = p.numerator, p.denominator - p.numerator
        self._added: list[int] = [self._miss**self._trials]
        self._known: dict[int, int] = {}

    def ways(self, x: int) -> int:
        """Ways of standing at x."""
        before = self._before
        if before is None:
            return self._add(x)
        if x not in self._known:
            kept = range(max(before.first, x - self._trials), min(before.last, x) + 1)
            self._known[x] = sum(before.ways(y) * self._add(x - y) for y in kept)
        return self._known[x]

    def _add(self, x: int) -> int:
        """Ways of adding x since the look before: C(m, x) hit^x miss^(m - x), each from its neighbour, always whole."""
        for i in range(len(self._added), x + 1):
            self._added.append(self._added[-1] * (self._trials - i + 1) * self._hit // (i * self._miss))
        return self._added[x]
