"""Effective context: the longest length up to which every band of a task passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evalgate.gates.verdict import CellVerdict, Status, Verdict
from evalgate.records import Cell
from evalgate.reports import figures
from evalgate.reports.headline import INVALID
from evalgate.reports.source import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """One task's effective context, ready to print."""

    title: str
    length: str
    """``4,096``, ``none``, ``none proven``, or a dash where no bar speaks of the task."""
    asked: str
    """The longest length that was asked."""
    whole: bool
    """Every length that was asked passes."""
    stopped_by: str
    """What ends it: ``8,192 middle blocks``."""
    baseline: str
    """The baseline's own, by the same bars; empty where there is no baseline."""


def reaches(groups: Sequence[Group], verdict: Verdict | None) -> list[Reach]:
    """One reach for each task; a length counts only if every shorter one passes too."""
    judged = {item.cell: item for item in verdict.cells} if verdict else {}
    if verdict is not None and verdict.status in INVALID:
        return [_unjudged(group) for group in groups]
    return [_reach(group, judged) for group in groups]


def _unjudged(group: Group) -> Reach:
    return Reach(
        title=group.title,
        length=figures.NONE,
        asked=figures.count(group.lengths[-1]),
        whole=False,
        stopped_by="not judged: the run is not valid",
        baseline="",
    )


def _reach(group: Group, judged: Mapping[Cell, CellVerdict]) -> Reach:
    lengths = [length for length in group.lengths if _items(group, length, judged)]
    passing = _leading(lengths, group, judged, _passes)
    old = _leading(lengths, group, judged, _baseline_passes)
    compared = any(item.baseline for length in lengths for item in _items(group, length, judged))
    return Reach(
        title=group.title,
        length=_name(passing, lengths, blocked=_blocks(group, lengths, judged)),
        asked=figures.count(group.lengths[-1]),
        whole=bool(passing) and len(passing) == len(group.lengths),
        stopped_by=_stopped_by(group, lengths, passing, judged),
        baseline=_name(old, lengths, blocked=False) if compared else "",
    )


def _items(group: Group, length: int, judged: Mapping[Cell, CellVerdict]) -> list[CellVerdict]:
    cells = (Cell(group.task, length, band, group.arm) for band in group.bands)
    return [judged[cell] for cell in cells if cell in judged]


def _leading(
    lengths: list[int], group: Group, judged: Mapping[Cell, CellVerdict], test: Callable[[CellVerdict], bool]
) -> list[int]:
    """The lengths, shortest first, up to the first one where a band fails the test or has no bar."""
    found = []
    for length in lengths:
        items = _items(group, length, judged)
        if len(items) < len(group.bands) or not all(test(item) for item in items):
            break
        found.append(length)
    return found


def _passes(item: CellVerdict) -> bool:
    return item.status is Status.PASS


def _baseline_passes(item: CellVerdict) -> bool:
    """By the same integer as the candidate, which holds only for the same number of trials."""
    old = item.baseline
    return old is not None and item.pass_min is not None and old.n == item.n and old.k_baseline >= item.pass_min


def _blocks(group: Group, lengths: list[int], judged: Mapping[Cell, CellVerdict]) -> bool:
    """Whether the shortest length itself is proven bad."""
    return any(item.status is Status.BLOCK for length in lengths[:1] for item in _items(group, length, judged))


def _name(passing: list[int], judged: list[int], *, blocked: bool) -> str:
    """The longest length that passes; unknown is not none."""
    if passing:
        return figures.count(passing[-1])
    if not judged:
        return figures.NONE
    return "none" if blocked else "none proven"


def _stopped_by(group: Group, lengths: list[int], passing: list[int], judged: Mapping[Cell, CellVerdict]) -> str:
    if not lengths:
        return "no bar speaks of this task"
    if len(passing) == len(lengths):
        return "" if len(lengths) == len(group.lengths) else "longer lengths have no bar"
    first = lengths[len(passing)]
    words = {Status.BLOCK: "blocks", Status.INCONCLUSIVE: "is open", Status.PASS: "passes"}
    items = [item for item in _items(group, first, judged) if not _passes(item)]
    bands = [f"{item.cell.band} {words.get(item.status, 'is in error')}" for item in items]
    again = [figures.count(length) for length in lengths[len(passing) + 1 :] if _all_pass(group, length, judged)]
    later = f"; passes again at {figures.listing(again)}" if again else ""
    return f"at {figures.count(first)}: {figures.listing(bands) if bands else 'a band has no bar'}{later}"


def _all_pass(group: Group, length: int, judged: Mapping[Cell, CellVerdict]) -> bool:
    items = _items(group, length, judged)
    return len(items) == len(group.bands) and all(_passes(item) for item in items)
