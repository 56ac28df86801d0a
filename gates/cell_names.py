"""Names for sets of cells: "middle of every task" rather than twelve coordinates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations

from evalgate.records import Cell

DIMENSIONS = ("task", "length", "band", "arm")
SLICES = [fixed for size in range(len(DIMENSIONS)) for fixed in combinations(DIMENSIONS, size)]
"""Every way to fix some of the dimensions, coarsest first."""
SHOWN = 3
"""Names given before the rest is counted."""


def name_cells(chosen: Collection[Cell], universe: Sequence[Cell]) -> str:
    """Name ``chosen`` in plain words, by the largest whole slices of ``universe`` that it contains.

    A slice fixes some of task, length, band and arm: ``middle of every task``, ``task multikey@8 in every band``.
    """
    whole = _whole_slices(frozenset(chosen), universe)
    left = [cell for cell in universe if cell in set(chosen)]
    names: list[str] = []
    while left and len(names) < SHOWN:
        remaining = set(left)
        group = max(whole, key=lambda cells: len(remaining.intersection(cells)), default=())
        if len(remaining.intersection(group)) < 2:
            group = (left[0],)
        names.append(_name(group, universe))
        left = [cell for cell in left if cell not in set(group)]
    shown = ", ".join(names)
    return f"{shown} and {len(left)} more cells" if left else shown


def _whole_slices(chosen: frozenset[Cell], universe: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    """Slices of at least two cells that lie wholly in ``chosen``, coarsest first."""
    slices: dict[tuple[object, ...], list[Cell]] = {}
    for fixed in SLICES:
        for cell in universe:
            slices.setdefault((fixed, *(getattr(cell, name) for name in fixed)), []).append(cell)
    return [tuple(cells) for cells in slices.values() if len(cells) > 1 and chosen.issuperset(cells)]


def _name(group: Sequence[Cell], universe: Sequence[Cell]) -> str:
    if len(group) == 1:
        return str(group[0])
    if len(group) == len(universe):
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
