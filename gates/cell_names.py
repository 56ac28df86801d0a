"""Names for sets of cells: "middle of every task" rather than twelve coordinates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations

from evalgate.records import Cell

DIMENSIONS = ("task", "length", "band", "arm")
SHOWN = 3
"""Names given before the rest is counted."""


def name_cells(chosen: Collection[Cell], universe: Sequence[Cell]) -> str:
    """Name ``chosen`` in plain words, by the largest whole slices of ``universe`` that it contains.

    A slice fixes some of task, length, band and arm: ``middle of every task``, ``task multikey@8 in every band``.
    """
    left = [cell for cell in universe if cell in set(chosen)]
    names = []
    while left:
        group, fixed = _largest_slice(left, universe, set(chosen))
        names.append(_name(group, fixed, universe) if len(group) > 1 else str(group[0]))
        left = [cell for cell in left if cell not in group]
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"


def _largest_slice(
    left: Sequence[Cell], universe: Sequence[Cell], chosen: set[Cell]
) -> tuple[list[Cell], tuple[str, ...]]:
    """The slice through a cell of ``left`` that lies wholly in ``chosen`` and covers most of ``left``."""
    best: tuple[list[Cell], tuple[str, ...]] = ([left[0]], DIMENSIONS)
    covered = 1
    for size in range(len(DIMENSIONS)):
        for fixed in combinations(DIMENSIONS, size):
            for key in dict.fromkeys(_key(cell, fixed) for cell in left):
                group = [cell for cell in universe if _key(cell, fixed) == key]
                gain = sum(cell in group for cell in left)
                if gain > covered and chosen.issuperset(group):
                    best, covered = (group, fixed), gain
    return best


def _key(cell: Cell, fixed: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(getattr(cell, dimension) for dimension in fixed)


def _name(group: Sequence[Cell], fixed: tuple[str, ...], universe: Sequence[Cell]) -> str:
    if not fixed or len(group) == len(universe):
        return "every cell"
    first = group[0]
    several = {dimension: len({getattr(cell, dimension) for cell in group}) > 1 for dimension in DIMENSIONS}
    varies = {dimension: len({getattr(cell, dimension) for cell in universe}) > 1 for dimension in DIMENSIONS}
    if several["task"] and several["band"]:
        name = "every task and band"
    elif several["task"]:
        name = f"{first.band} of every task"
    elif several["band"]:
        name = f"task {first.task} in every band"
    else:
        name = f"{first.band} of task {first.task}"
    if several["length"]:
        name += " at every length"
    elif varies["length"]:
        name += f" at length {first.length}"
    if varies["arm"]:
        name += " in every arm" if several["arm"] else f" ({first.arm})"
    return name
