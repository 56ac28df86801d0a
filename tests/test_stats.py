"""Statistics of the gate: published numbers are reproduced, and the integers mean what they say."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from math import comb, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalgate import stats

BAR = 0.90
Z95 = 1.6448536269514722

sizes = st.integers(min_value=1, max_value=150)
bars = st.integers(min_value=1, max_value=99).map(lambda percent: Fraction(percent, 100))
alphas = st.sampled_from([Fraction(1, 20), Fraction(1, 50), Fraction(1, 600), Fraction(1, 1200)])


def upper_tail(k: int, n: int, p: Fraction) -> Fraction:
    """P(X >= k) summed term by term, as the definition says."""
    return sum((comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1)), Fraction(0))


def power(decide: Callable[[int], int | None], tail: Callable[[int, int, float], float], n: int, p: float) -> float:
    """Probability that the integer test ``decide`` fires at n trials when the true share is p."""
    k = decide(n)
    return 0.0 if k is None else tail(k, n, p)


def settled_from(reached: Callable[[int], bool], start: int, stop: int) -> int:
    """Smallest n from which on ``reached`` holds up to ``stop``: exact power is a saw-tooth in n."""
    return max(n for n in range(start, stop) if not reached(n)) + 1


@pytest.mark.parametrize(("n", "k"), [(29, 29), (60, 59), (100, 96), (200, 188), (400, 371), (800, 735)])
def test_pass_needs_the_published_count(n: int, k: int) -> None:
    """PASS at bar .90 and alpha .05 needs 59 of 60, 96 of 100, 188 of 200, 371 of 400, 735 of 800."""
    assert stats.pass_min(n, BAR, 0.05) == k


@pytest.mark.parametrize(("n", "alpha"), [(29, Fraction("0.05")), (53, Fraction("0.05") / 12)])
def test_no_misses_needs_29_or_53_seeds(n: int, alpha: Fraction) -> None:
    """A clean sweep passes from 29 seeds at .05 and from 53 at .05/12, and not one seed earlier."""
    assert stats.pass_min(n, BAR, alpha) == n
    assert stats.pass_min(n - 1, BAR, alpha) is None


@pytest.mark.parametrize(("n", "k"), [(100, 87), (200, 180), (400, 366), (800, 741)])
def test_floor_breaks_at_the_published_count(n: int, k: int) -> None:
    """The floor test at .95 with .01 over three bands breaks at 87, 180, 366, 741."""
    assert stats.block_max(n, 0.95, Fraction("0.01") / 3) == k


def test_guard_blocks_at_45_of_60() -> None:
    """A guard cell of twelve, at 60 seeds, blocks at 45 and below."""
    assert stats.block_max(60, BAR, Fraction("0.01") / 12) == 45


@pytest.mark.parametrize(("n", "breaks"), [(100, 0), (200, 1), (400, 6), (800, 15)])
def test_breaks_allowed_at_margin_three_percent(n: int, breaks: int) -> None:
    """The break bound at d = .03 allows 0, 1, 6, 15 breaks."""
    assert stats.breaks_max(n, 0.03, 0.05) == breaks


@pytest.mark.parametrize(("margin", "n"), [(0.02, 149), (0.03, 99), (0.05, 59)])
def test_break_bound_is_first_reached_at(margin: float, n: int) -> None:
    """No breaks at all shows a margin of .02, .03, .05 from 149, 99, 59 seeds."""
    assert stats.breaks_max(n, margin, 0.05) == 0
    assert stats.breaks_max(n - 1, margin, 0.05) is None


@pytest.mark.parametrize(("p", "n80", "n90"), [(0.85, 299, 405), (0.88, 1579, 2174)])
def test_seeds_to_block_a_bad_cell(p: float, n80: int, n90: int) -> None:
    """A true .85 blocks with power .80 (.90) from 299 (405) seeds; a true .88 from 1,579 (2,174)."""

    def reached(level: float) -> Callable[[int], bool]:
        return lambda n: power(lambda m: stats.block_max(m, BAR, 0.05), stats.binom_cdf, n, p) >= level

    assert settled_from(reached(0.80), n80 - 60, n80 + 40) == n80
    assert settled_from(reached(0.90), n90 - 60, n90 + 40) == n90


@pytest.mark.parametrize(("p", "n80", "n90"), [(0.92, 1365, 1845), (0.95, 203, 263), (0.97, 89, 116), (0.99, 46, 61)])
def test_seeds_to_pass_a_good_cell(p: float, n80: int, n90: int) -> None:
    """A true .92, .95, .97, .99 passes with power .80 (.90) from the published number of seeds."""

    def reached(level: float) -> Callable[[int], bool]:
        return lambda n: power(lambda m: stats.pass_min(m, BAR, 0.05), stats.binom_sf, n, p) >= level

    assert settled_from(reached(0.80), max(1, n80 - 60), n80 + 40) == n80
    assert settled_from(reached(0.90), max(1, n90 - 60), n90 + 40) == n90


@pytest.mark.parametrize(("p", "seeds"), [(0.95, (203, 286, 379, 402)), (0.99, (46, 61, 76, 76))])
def test_joint_pass_costs_seeds(p: float, seeds: tuple[int, ...]) -> None:
    """Joint power .80 over 1, 3, 9, 12 cells needs the published seeds per cell."""
    for cells, expected in zip((1, 3, 9, 12), seeds, strict=True):

        def reached(n: int, cells: int = cells) -> bool:
            return power(lambda m: stats.pass_min(m, BAR, 0.05), stats.binom_sf, n, p) ** cells >= 0.80

        assert settled_from(reached, max(1, expected - 60), expected + 40) == expected


def test_joint_pass_at_a_hundred_seeds() -> None:
    """At 100 seeds a model at .99 passes 12 cells with .96 and 36 with .88; at .97 one cell with .82."""
    k = stats.pass_min(100, BAR, 0.05)

    assert k is not None
    assert round(stats.binom_sf(k, 100, 0.99) ** 12, 2) == 0.96
    assert round(stats.binom_sf(k, 100, 0.99) ** 36, 2) == 0.88
    assert round(stats.binom_sf(k, 100, 0.97), 2) == 0.82


def wald(k: int, n: int) -> float:
    """Lower bound by the normal approximation, the commonest fault of gates."""
    return k / n - Z95 * sqrt(k / n * (1 - k / n) / n)


def wilson(k: int, n: int) -> float:
    """Lower bound by Wilson's score."""
    p, z = k / n, Z95
    return (p + z * z / (2 * n) - z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (1 + z * z / n)


def clopper_pearson(k: int, n: int) -> float:
    """Lower bound of this package."""
    return stats.lower_bound(k, n, 0.05)


@pytest.mark.parametrize(("bound", "worst"), [(wald, 0.233), (wilson, 0.072), (clopper_pearson, 0.050)])
def test_largest_true_error_of_a_lower_bound(bound: Callable[[int, int], float], worst: float) -> None:
    """A "lower bound >= .90" at nominal .05 over n = 20..600 errs by .233 (Wald), .072 (Wilson), .050 (exact)."""
    errors = [
        stats.binom_sf(k, n, BAR)
        for n in range(20, 601)
        if (k := next((k for k in range(n // 2, n + 1) if bound(k, n) >= BAR), None)) is not None
    ]

    assert round(max(errors), 3) == worst


def test_naive_gate_passes_a_bad_model_a_third_of_the_time() -> None:
    """The rule "k/n >= .90" at n = 100 passes a true .88 33% of the time."""
    assert round(stats.binom_sf(90, 100, 0.88), 2) == 0.33


def test_five_discordant_pairs_one_way() -> None:
    """Five breaks and no gain have McNemar p = 1/32 = .031."""
    assert stats.mcnemar(5, 0) == pytest.approx(1 / 32, abs=1e-15)
    assert stats.mcnemar(0, 0) == 1
    assert stats.mcnemar_min(5, 0.05) == 5
    assert stats.mcnemar_min(4, 0.05) is None
    assert stats.mcnemar_min(0, 0.05) is None


def test_certainty_is_never_claimed() -> None:
    """60 of 60 has a one-sided lower bound of .951, and 0 of n an upper bound below 1 only with evidence."""
    assert round(stats.lower_bound(60, 60, 0.05), 3) == 0.951
    assert stats.clopper_pearson(0, 10).lower == 0
    assert 0.3 < stats.clopper_pearson(0, 10).upper < 0.31
    with pytest.raises(ValueError, match="0 of 0"):
        stats.clopper_pearson(0, 0)


def test_a_float_bar_is_the_decimal_it_prints_as() -> None:
    """0.9, Decimal('0.9') and 9/10 are one bar; NaN is none."""
    assert stats.exact(0.9) == Fraction(9, 10) == stats.exact(Decimal("0.90"))
    assert stats.exact(0.8999999999999999) != Fraction(9, 10)
    with pytest.raises(ValueError, match="nan"):
        stats.exact(float("nan"))


def test_a_tail_exactly_at_alpha_decides() -> None:
    """A tail equal to alpha passes, where float sums would leave it to rounding: .1 cubed is not .001 in floats."""
    assert 0.1**3 > 0.001
    assert stats.pass_min(3, 0.1, 0.001) == 3
    assert stats.block_max(3, 0.9, 0.001) == 0


def test_bars_at_the_ends() -> None:
    """Bar 1 can never be shown but blocks at one miss; nothing is decided by no trials."""
    assert stats.pass_min(1000, 1, 0.05) is None
    assert stats.block_max(1000, 1, 0.05) == 999
    assert stats.pass_min(0, BAR, 0.05) is None
    assert stats.block_max(0, BAR, 0.05) is None
    with pytest.raises(ValueError, match="alpha"):
        stats.pass_min(10, BAR, 0)


def test_seeds_to_pass_is_the_first_that_would() -> None:
    """The hint is a number that passes at the observed share, and none where the share is at or under the bar."""
    m = stats.seeds_to_pass(94, 100, BAR, 0.05)

    assert m is not None
    assert 94 * m // 100 >= (stats.pass_min(m, BAR, 0.05) or m + 1)
    assert stats.seeds_to_pass(2, 2, BAR, 0.05) == 29
    assert stats.seeds_to_pass(90, 100, BAR, 0.05) is None
    assert stats.seeds_to_pass(9001, 10_000, BAR, 0.05) is None
    assert stats.seeds_to_pass(0, 0, BAR, 0.05) is None


def test_seeds_to_pass_counts_breaks_too() -> None:
    """With a margin both bounds must hold, and breaks at the margin never will."""
    m = stats.seeds_to_pass(98, 100, BAR, 0.05, breaks=1, margin=0.03)

    assert m is not None
    assert -(-m // 100) <= (stats.breaks_max(m, 0.03, 0.05) or 0)
    assert stats.seeds_to_pass(98, 100, BAR, 0.05, breaks=3, margin=0.03) is None


@settings(deadline=None)
@given(n=sizes, bar=bars, alpha=alphas)
def test_pass_min_is_the_smallest_count_whose_tail_is_small(n: int, bar: Fraction, alpha: Fraction) -> None:
    """P(X >= k_min) <= alpha and P(X >= k_min - 1) > alpha, exactly."""
    k = stats.pass_min(n, bar, alpha)

    if k is None:
        assert upper_tail(n, n, bar) > alpha
    else:
        assert upper_tail(k, n, bar) <= alpha < upper_tail(k - 1, n, bar)


@settings(deadline=None)
@given(n=sizes, bar=bars, alpha=alphas)
def test_block_max_mirrors_pass_min(n: int, bar: Fraction, alpha: Fraction) -> None:
    """P(X <= k_max) <= alpha and P(X <= k_max + 1) > alpha, exactly; BLOCK and PASS never overlap."""
    k = stats.block_max(n, bar, alpha)
    k_min = stats.pass_min(n, bar, alpha)

    if k is None:
        assert 1 - upper_tail(1, n, bar) > alpha
    else:
        assert 1 - upper_tail(k + 1, n, bar) <= alpha < 1 - upper_tail(k + 2, n, bar)
    assert k is None or k_min is None or k < k_min


@settings(deadline=None)
@given(n=sizes, bar=bars, alpha=alphas, data=st.data())
def test_pass_is_the_lower_bound_at_the_bar(n: int, bar: Fraction, alpha: Fraction, data: st.DataObject) -> None:
    """Reaching k_min says the same as "Clopper-Pearson lower bound >= bar", away from float ties."""
    k = data.draw(st.integers(min_value=0, max_value=n))
    bound = stats.lower_bound(k, n, alpha)
    k_min = stats.pass_min(n, bar, alpha)

    if abs(bound - float(bar)) > 1e-9:
        assert (k_min is not None and k >= k_min) == (bound >= float(bar))


@settings(deadline=None)
@given(n=sizes, bar=bars, data=st.data())
def test_tails_agree_with_the_definition(n: int, bar: Fraction, data: st.DataObject) -> None:
    """The float tails equal the exact sums, and together they make 1."""
    k = data.draw(st.integers(min_value=-1, max_value=n + 1))

    assert stats.binom_sf(k, n, bar) == pytest.approx(float(upper_tail(max(k, 0), n, bar)), rel=1e-9, abs=1e-300)
    assert stats.binom_sf(k, n, bar) + stats.binom_cdf(k - 1, n, bar) == pytest.approx(1, abs=1e-12)


@settings(deadline=None)
@given(b=st.integers(0, 60), c=st.integers(0, 60), alpha=alphas)
def test_mcnemar_integer_and_p_value_agree(b: int, c: int, alpha: Fraction) -> None:
    """Reaching b_min says the same as p <= alpha; more breaks never raise p, more gains never lower it."""
    least = stats.mcnemar_min(b + c, alpha)
    p = upper_tail(b, b + c, Fraction(1, 2))

    assert (least is not None and b >= least) == (p <= alpha)
    assert stats.mcnemar(b, c) == pytest.approx(float(p), rel=1e-9)
    assert stats.mcnemar(b + 1, c) <= stats.mcnemar(b, c) <= stats.mcnemar(b, c + 1)


@settings(deadline=None)
@given(n=sizes, k=st.data())
def test_interval_holds_the_observed_share(n: int, k: st.DataObject) -> None:
    """The two-sided interval contains k/n and lies within [0, 1]."""
    count = k.draw(st.integers(min_value=0, max_value=n))
    lower, upper = stats.clopper_pearson(count, n)

    assert 0 <= lower <= count / n <= upper <= 1
    assert upper == pytest.approx(1 - stats.clopper_pearson(n - count, n).lower, abs=1e-9)


def test_a_lower_tail_exactly_at_alpha_decides() -> None:
    """One toss of a fair coin at alpha 1/2: none right blocks, as one right passes."""
    half = Fraction(1, 2)

    assert (stats.block_max(1, half, half), stats.pass_min(1, half, half)) == (0, 1)
