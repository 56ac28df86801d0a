"""The first look: one small table a task, bands down and lengths across, with each cell's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evalgate.records import Cell
from evalgate.reports.cells import CellRow
from evalgate.reports.reach import Reach
from evalgate.reports.source import Group

_BAD = ("block", "error")

FEW, MANY = 4, 6
"""Lengths that a card has room for at full size, and closely set; more of them scroll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One mark and what it means."""

    kind: str
    mark: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """One band of a task at every length; None where the plan does not ask."""

    band: str
    cells: tuple[CellRow | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCard:
    """One task at a glance."""

    title: str
    anchor: str
    kind: str
    """CSS class of its worst cell."""
    width: str
    """CSS class by the number of lengths: ``few``, ``many`` or ``broad``."""
    reach: Reach
    lengths: tuple[str, ...]
    rows: tuple[CardRow, ...]


def card(group: Group, at: int, rows: Mapping[Cell, CellRow], reach: Reach) -> TaskCard:
    """Build the card of one task."""
    lines = tuple(
        CardRow(
            band=band,
            cells=tuple(rows.get(Cell(group.task, length, band, group.arm)) for length in group.lengths),
        )
        for band in group.bands
    )
    return TaskCard(
        title=group.title,
        anchor=f"task-{at}",
        kind=_worst(lines),
        width="few" if len(group.lengths) <= FEW else "many" if len(group.lengths) <= MANY else "broad",
        reach=reach,
        lengths=tuple(_short(length) for length in group.lengths),
        rows=lines,
    )


def standings(rows: Mapping[Cell, CellRow]) -> tuple[Standing, ...]:
    """The marks that occur, best first, and the words for them."""
    words = {"pass": "passes", "open": "open", "block": "blocks", "error": "in error", "plain": "not judged"}
    marks = {row.kind: row.mark for row in rows.values()}
    return tuple(Standing(kind=kind, mark=marks[kind], words=words[kind]) for kind in words if kind in marks)


def _worst(lines: tuple[CardRow, ...]) -> str:
    kinds = {cell.kind for line in lines for cell in line.cells if cell}
    return next((kind for kind in (*_BAD, "open", "plain", "pass") if kind in kinds), "plain")


def _short(length: int) -> str:
    """``4k`` for 4,096, as everybody says it; other lengths in full."""
    return f"{length // 1024}k" if length % 1024 == 0 else f"{length:,}"
