"""Names of sets of cells: what a reviewer reads first."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalgate.gates.cell_names import name_cells
from evalgate.gates.explanation import tell_bar
from evalgate.records import Cell

BANDS = ("front", "middle", "back")


def grid(tasks: tuple[str, ...], lengths: tuple[int, ...], arms: tuple[str, ...] = ("default",)) -> list[Cell]:
    """All cells of a plan."""
    return [Cell(*parts) for parts in product(tasks, lengths, BANDS, arms)]


DEMO = grid(("single", "multikey@8"), (1024,))
NEEDLE = grid(("single", "multikey@8", "overwrite@3"), (1024, 2048, 4096, 8192))


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ({"band": "middle"}, "middle of every task"),
        ({"task": "multikey@8"}, "task multikey@8 in every band"),
        ({"task": "single", "band": "front"}, "single · 1024 · front"),
        ({}, "every cell"),
    ],
)
def test_whole_slices_at_one_length(parts: dict[str, object], name: str) -> None:
    """A band of every task and a task in every band are named as such; one length needs no mention."""
    chosen = [cell for cell in DEMO if parts.items() <= cell._asdict().items()]

    assert name_cells(chosen, DEMO) == name


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ({"band": "middle"}, "middle of every task at every length"),
        ({"task": "overwrite@3"}, "task overwrite@3 in every band at every length"),
        ({"length": 8192}, "every task and band at length 8192"),
        ({"length": 8192, "band": "middle"}, "middle of every task at length 8192"),
        ({"length": 8192, "task": "single"}, "task single in every band at length 8192"),
        ({"task": "single", "band": "middle"}, "middle of task single at every length"),
        ({}, "every cell"),
    ],
)
def test_whole_slices_over_lengths(parts: dict[str, object], name: str) -> None:
    """With several lengths the name says at which."""
    chosen = [cell for cell in NEEDLE if parts.items() <= cell._asdict().items()]

    assert name_cells(chosen, NEEDLE) == name


def test_what_no_slice_covers_is_named_by_itself() -> None:
    """A whole band and one cell more: the band first, then the cell."""
    chosen = [cell for cell in DEMO if cell.band == "middle"] + [Cell("single", 1024, "back")]

    assert name_cells(chosen, DEMO) == "middle of every task, single · 1024 · back"


def test_many_scattered_cells_are_counted() -> None:
    """After three names the rest is a number."""
    chosen = [
        Cell("single", 1024, "front"),
        Cell("multikey@8", 2048, "middle"),
        Cell("overwrite@3", 4096, "back"),
        Cell("single", 8192, "middle"),
        Cell("multikey@8", 1024, "back"),
    ]

    assert name_cells(chosen, NEEDLE).endswith(" and 2 more cells")


def test_arms_are_named_where_there_are_several() -> None:
    """The arm belongs to the name as soon as a run has more than one."""
    cells = grid(("single", "multikey@8"), (1024,), ("default", "warm"))

    assert name_cells([cell for cell in cells if cell.arm == "warm"], cells) == "every task and band (warm)"
    middle = [cell for cell in cells if cell.band == "middle"]
    assert name_cells(middle, cells) == "middle of every task in every arm"


@given(st.sets(st.sampled_from(NEEDLE), min_size=1))
def test_a_name_never_claims_more_than_was_chosen(chosen: set[Cell]) -> None:
    """The word "every" is said only of slices that were chosen whole."""
    name = name_cells(chosen, NEEDLE)

    assert (name == "every cell") == (chosen == set(NEEDLE))
    for band in BANDS:
        if f"{band} of every task at every length" in name:
            assert {cell for cell in NEEDLE if cell.band == band} <= chosen


@pytest.mark.parametrize(("bar", "text"), [(0.9, "0.90"), (0.95, "0.95"), (1, "1.00"), (0.899, "0.899")])
def test_bars_are_not_rounded(bar: float, text: str) -> None:
    """A bar of .899 is not shown as .90."""
    assert tell_bar(bar) == text
