"""The cells that decided: those that block, those still open, or, after a PASS, those closest to failing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evalgate.gates.verdict import CellVerdict, Status, Verdict
from evalgate.records import Cell
from evalgate.reports import figures
from evalgate.reports.cells import CellRow
from evalgate.reports.validity import CheckRow, failed_checks

CAP = 12
"""Most cells listed; the bands table has all of them."""
CLOSEST = 3
"""Cells shown after a PASS, and without a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """The rows that a reader needs to follow the verdict, and what they are."""

    title: str
    sentence: str
    checks: tuple[CheckRow, ...]
    """The checks that failed, where they carry the verdict."""
    rows: tuple[CellRow, ...]
    compared: bool
    needed: bool
    """Some cell says how many seeds would do."""


def deciding(verdict: Verdict | None, rows: Mapping[Cell, CellRow], shares: Mapping[Cell, float]) -> Deciding:
    """Choose the cells that carry the verdict; ``shares`` are observed shares, for a report without one."""
    if verdict is None:
        weakest = sorted(shares, key=lambda cell: (shares[cell], cell))[:CLOSEST]
        return _made("Weakest cells", "No policy was applied, so no cell decided.", [rows[cell] for cell in weakest])
    found = {status: [item for item in verdict.cells if item.status is status] for status in Status}
    for status, title, words in (
        (Status.BLOCK, "Cells that block", _blocks),
        (Status.INCONCLUSIVE, "Cells that are still open", _opens),
    ):
        if verdict.status is status and found[status]:
            return _made(title, words(found[status]), _rows(sorted(found[status], key=_share), rows))
    if verdict.status is Status.PASS and verdict.cells:
        items = sorted(found[Status.PASS], key=_spare)[:CLOSEST]
        sentence = f"Every one of {figures.plural(len(found[Status.PASS]), 'cell')} that must pass does. "
        return _made("Cells closest to failing", f"{sentence}These have the least to spare.", _rows(items, rows))
    items = [item for item in verdict.cells if item.errors or item.missing]
    items.sort(key=lambda item: -item.errors - item.missing)
    at_fault = " The cells below hold outcomes that are unknown." if items else ""
    sentence = f"The verdict comes from checks of validity, not from recall.{at_fault}"
    return _made("What is broken", sentence, _rows(items, rows), failed_checks(verdict))


def _made(title: str, sentence: str, rows: list[CellRow], checks: tuple[CheckRow, ...] = ()) -> Deciding:
    rest = len(rows) - CAP
    tail = f" The worst {CAP} are shown; {rest} more are in the bands table." if rest > 0 else ""
    shown = tuple(rows[:CAP])
    compared = any(row.against for row in shown)
    return Deciding(
        title=title,
        sentence=sentence + tail,
        checks=checks,
        rows=shown,
        compared=compared,
        needed=any(row.n_needed != figures.NONE for row in shown),
    )


def _rows(items: list[CellVerdict], rows: Mapping[Cell, CellRow]) -> list[CellRow]:
    return [rows[item.cell] for item in items]


def _share(item: CellVerdict) -> float:
    return item.k / item.n if item.n else 0.0


def _spare(item: CellVerdict) -> int:
    """Trials that the cell could still lose without failing, by the bar or by the baseline."""
    spare = [item.k - item.pass_min] if item.pass_min is not None else []
    if item.baseline and item.baseline.breaks_max is not None:
        spare.append(item.baseline.breaks_max - item.baseline.breaks)
    return min(spare, default=0)


def _named(items: list[CellVerdict], of: Callable[[Cell], str]) -> str:
    return figures.listing(list(dict.fromkeys(of(item.cell) for item in items)), 6)


def _where(items: list[CellVerdict]) -> str:
    tasks = _named(items, lambda cell: cell.task)
    lengths = _named(sorted(items, key=lambda item: item.cell.length), lambda cell: figures.count(cell.length))
    return f"in task {tasks}, at {lengths} tokens, band {_named(items, lambda cell: cell.band)}"


def _blocks(items: list[CellVerdict]) -> str:
    verb = "blocks" if len(items) == 1 else "block"
    return f"{figures.plural(len(items), 'cell')} {verb}, {_where(items)}. One is enough."


def _opens(items: list[CellVerdict]) -> str:
    verb = "is" if len(items) == 1 else "are"
    return f"{figures.plural(len(items), 'cell')} {verb} neither proven good nor proven bad, {_where(items)}."
