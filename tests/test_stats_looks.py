"""Statistics under looks: published boundaries, powers and costs are reproduced, and every boundary is the best one."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalgate import stats

BAR = 0.90
LOOKS = (100, 200, 400, 800)
PASS = stats.pass_bounds(LOOKS, BAR, 0.05)
THIRD = Fraction("0.05") / 3
DEFAULT = Fraction("0.02")
"""The absolute part of the BLOCK budget."""

small_looks = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(
    lambda steps: tuple(sum(steps[: i + 1]) for i in range(len(steps)))
)
bars = st.integers(min_value=1, max_value=99).map(lambda percent: Fraction(percent, 100))
alphas = st.sampled_from([Fraction(1, 3), Fraction(1, 20), Fraction(1, 50), Fraction(1, 600)])


@pytest.mark.parametrize(
    ("looks", "passes", "blocks"),
    [
        ((60, 120, 240, 480), (60, 116, 226, 444), (46, 97, 203, 415)),
        ((100, 200, 400, 800), (98, 190, 373, 736), (80, 166, 343, 699)),
        ((200, 400, 800, 1600), (191, 374, 738, 1463), (166, 342, 697, 1411)),
    ],
)
def test_published_boundaries(looks: Sequence[int], passes: Sequence[int], blocks: Sequence[int]) -> None:
    """The table of looks at bar .90, PASS at .05 and BLOCK at .05/3."""
    assert stats.pass_bounds(looks, BAR, 0.05) == passes
    assert stats.block_bounds(looks, BAR, THIRD) == blocks


@pytest.mark.parametrize(("cells", "blocks"), [(12, (77, 163, 338, 692)), (36, (76, 162, 336, 689))])
def test_block_boundaries_of_the_default_budget(cells: int, blocks: Sequence[int]) -> None:
    """.02 over 12 cells and over 36."""
    assert stats.block_bounds(LOOKS, BAR, DEFAULT / cells) == blocks


@pytest.mark.parametrize(
    ("margin", "breaks"),
    [(0.02, (None, None, 2, 9)), (0.03, (None, 0, 5, 15)), (0.05, (0, 2, 11, 28)), (0.08, (1, 7, 20, 50))],
)
def test_breaks_allowed_under_looks(margin: float, breaks: Sequence[int | None]) -> None:
    """A PASS against a baseline is first possible at 200 seeds for .03, at 400 for .02."""
    assert stats.breaks_bounds(LOOKS, margin, 0.05) == breaks


@pytest.mark.parametrize(
    ("recall", "passes", "blocks", "expected"),
    [
        (0.85, 0.000, 0.977, 458),
        (0.88, 0.001, 0.329, 748),
        (0.90, 0.045, 0.014, 786),
        (0.92, 0.559, 0.000, 694),
        (0.95, 1.000, 0.000, 288),
        (0.97, 1.000, 0.000, 166),
        (0.99, 1.000, 0.000, 108),
    ],
)
def test_published_power_and_cost(recall: float, passes: float, blocks: float, expected: int) -> None:
    """P(PASS), P(BLOCK) and mean seeds of one cell at 100-800 with BLOCK at .05/3."""
    found = stats.chances(LOOKS, PASS, stats.block_bounds(LOOKS, BAR, THIRD), recall)

    assert (round(found.passes, 3), round(found.blocks, 3), round(found.expected_n)) == (passes, blocks, expected)


def test_power_against_a_bad_cell_of_36() -> None:
    """At .05/36 a true .85 blocks with .878."""
    found = stats.chances(LOOKS, PASS, stats.block_bounds(LOOKS, BAR, Fraction("0.05") / 36), 0.85)

    assert round(found.blocks, 3) == 0.878


@pytest.mark.parametrize(
    ("recall", "cells", "haystacks"), [(0.95, 3, 411), (0.95, 36, 724), (0.97, 36, 353), (0.99, 36, 195)]
)
def test_shared_haystacks_cost_the_longest_cell(recall: float, cells: int, haystacks: int) -> None:
    """The mean of the largest n over cells, with the default budget."""
    blocks = stats.block_bounds(LOOKS, BAR, DEFAULT / cells)
    decided = stats.chances(LOOKS, PASS, blocks, recall).decided

    assert round(stats.expected_longest(LOOKS, decided, cells)) == haystacks


def test_one_look_is_the_fixed_test() -> None:
    """A look that is alone has all of alpha; the cell's chances are the binomial's tails."""
    assert stats.pass_bounds((400,), BAR, 0.05) == (371,)
    assert stats.block_bounds((400,), BAR, DEFAULT / 12) == (stats.block_max(400, BAR, DEFAULT / 12),)
    found = stats.chances((400,), (371,), (340,), 0.93)
    assert found.passes == pytest.approx(stats.binom_sf(371, 400, 0.93), rel=1e-9)
    assert found.blocks == pytest.approx(stats.binom_cdf(340, 400, 0.93), rel=1e-9)
    assert found.expected_n == pytest.approx(400, rel=1e-12)


def test_mcnemar_spends_its_budget_once() -> None:
    """Levels of the looks are 1/8, 1/8, 1/4, 1/2 of alpha; anew at all of it a .05 test errs by twice that."""
    assert stats.look_levels(LOOKS, 0.02) == (Fraction(1, 400), Fraction(1, 400), Fraction(1, 200), Fraction(1, 100))
    pairs = (40, 80, 160, 320)  # discordant pairs at each look, where one in 2.5 is discordant

    def size(levels: Sequence[Fraction]) -> float:
        least = [stats.mcnemar_min(n, level) for n, level in zip(pairs, levels, strict=True)]
        return stats.chances(pairs, least, [None] * len(pairs), 0.5).passes

    assert size(stats.look_levels(LOOKS, 0.05)) <= 0.05
    assert size([Fraction("0.05")] * 4) > 0.10


@pytest.mark.parametrize("looks", [(), (100, 100), (200, 100), (0, 10)])
def test_looks_that_are_none_are_refused(looks: Sequence[int]) -> None:
    """No look, a look of no seeds, and looks that do not ascend."""
    with pytest.raises(ValueError, match="expected ascending looks"):
        stats.pass_bounds(looks, BAR, 0.05)


def spent(looks: Sequence[int], bounds: Sequence[int | None], p: Fraction) -> list[Fraction]:
    """P(count was at or over its bound at a look by then), trial by trial."""
    alive, crossed, found = {0: Fraction(1)}, Fraction(0), []
    for (before, n), bound in zip(pairwise([0, *looks]), bounds, strict=True):
        for _ in range(n - before):
            after: dict[int, Fraction] = {}
            for k, chance in alive.items():
                after[k] = after.get(k, Fraction(0)) + chance * (1 - p)
                after[k + 1] = after.get(k + 1, Fraction(0)) + chance * p
            alive = after
        over = {k for k in alive if bound is not None and k >= bound}
        crossed += sum(alive.pop(k) for k in over)
        found.append(crossed)
    return found


@settings(deadline=None, max_examples=60)
@given(looks=small_looks, bar=bars, alpha=alphas)
def test_no_look_spends_more_than_its_time_and_none_could_ask_less(
    looks: tuple[int, ...], bar: Fraction, alpha: Fraction
) -> None:
    """By each look at most alpha n/n_max is spent, exactly, and one count less would spend more."""
    bounds = stats.pass_bounds(looks, bar, alpha)
    limits = [alpha * n / looks[-1] for n in looks]

    assert all(by <= limit for by, limit in zip(spent(looks, bounds, bar), limits, strict=True))
    for j, (n, bound) in enumerate(zip(looks, bounds, strict=True)):
        lower = n if bound is None else bound - 1
        assert spent(looks[: j + 1], [*bounds[:j], lower], bar)[-1] > limits[j]


@settings(deadline=None, max_examples=60)
@given(looks=small_looks, bar=bars, alpha=alphas)
def test_block_boundaries_mirror_pass_boundaries(looks: tuple[int, ...], bar: Fraction, alpha: Fraction) -> None:
    """Blocking at k correct is passing at n - k wrong."""
    blocks = stats.block_bounds(looks, bar, alpha)
    wrong = stats.pass_bounds(looks, 1 - bar, alpha)

    assert blocks == tuple(None if k is None else n - k for n, k in zip(looks, wrong, strict=True))


@settings(deadline=None, max_examples=60)
@given(looks=small_looks, bar=bars)
def test_chances_are_what_the_boundaries_spend(looks: tuple[int, ...], bar: Fraction) -> None:
    """At its bar a cell passes with just what the boundaries spend there, where nothing blocks it."""
    bounds = stats.pass_bounds(looks, bar, Fraction(1, 20))
    found = stats.chances(looks, bounds, [None] * len(looks), float(bar))

    assert found.decided == pytest.approx([float(by) for by in spent(looks, bounds, bar)], rel=1e-9, abs=1e-15)
