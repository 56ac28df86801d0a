"""The needles that were lost: right in the baseline and wrong now, or, without a baseline, simply missed.

Examples are capped; they are spread over the cells, worst cells first, and the rest is counted.
Totals over cells are clustered by haystack: they are shown, and decide nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evalgate.gates.verdict import Verdict
from evalgate.records import Cell, Outcome, Trial
from evalgate.reports import figures
from evalgate.reports.cells import CellRow
from evalgate.reports.excerpt import excerpt
from evalgate.reports.source import right

CAP = 50
"""Most needles listed one by one."""

FAILING_CAP = 40
"""Of these, most from cells that block, are in error or are open."""

_WORST_FIRST = {"block": 0, "error": 1, "open": 2}


class Lost(NamedTuple):
    """One lost needle as it was recorded."""

    trial: Trial
    baseline_answer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One lost needle, ready to print."""

    cell: str
    kind: str
    mark: str
    seed: str
    depth: str
    position: str
    expected: str
    answer: str
    outcome: str
    """Empty where the answer is simply wrong."""
    baseline_answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCount:
    """How many needles a cell lost, and how many of them are listed."""

    cell: str
    lost: str
    listed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Every loss counted, some listed."""

    title: str
    sentence: str
    rows: tuple[Loss, ...]
    counts: tuple[LossCount, ...]
    compared: bool
    short: str
    """For the first look: ``86 lost, 2 gained``."""


def losses(
    trials: Sequence[Trial],
    verdict: Verdict | None,
    partnered: Sequence[tuple[Trial, Trial]] | None,
    rows: Mapping[Cell, CellRow],
) -> Losses:
    """List what was lost: by the verdict's flips, else by the baseline's trials, else what was missed."""
    by_id = {trial.trial_id: trial for trial in trials}
    if verdict is not None and verdict.churn is not None:
        lost = [
            Lost(by_id[flip.trial_id], flip.baseline_answer)
            for flip in verdict.flips
            if flip.kind == "lost" and flip.trial_id in by_id
        ]
        gained = sum(flip.kind == "gained" for flip in verdict.flips)
        return _compared(lost, gained, trials, rows)
    if partnered is not None:
        lost = [Lost(new, old.answer) for old, new in partnered if right(old) is True and right(new) is False]
        gained = sum(right(old) is False and right(new) is True for old, new in partnered)
        return _compared(lost, gained, trials, rows)
    missed = [Lost(trial, None) for trial in trials if right(trial) is False]
    listed = _listed(missed, rows)
    sentence = f"{figures.plural(len(missed), 'needle')} missed of {figures.count(len(trials))} asked."
    return Losses(
        title="Missed needles",
        sentence=f"{sentence} {_capped(len(listed), len(missed))}",
        rows=tuple(_loss(item, rows) for item in listed),
        counts=_counts(missed, listed),
        compared=False,
        short=f"{figures.count(len(missed))} missed",
    )


def _compared(lost: list[Lost], gained: int, trials: Sequence[Trial], rows: Mapping[Cell, CellRow]) -> Losses:
    listed = _listed(lost, rows)
    both = sum(right(trial) is False for trial in trials) - len(lost)
    sentence = (
        f"{figures.plural(len(lost), 'needle')} lost (right in the baseline, wrong now) and "
        f"{figures.count(gained)} gained, of {figures.count(len(trials))} asked; "
        f"{figures.count(max(both, 0))} more are wrong now and were not right before."
    )
    return Losses(
        title="Lost needles",
        sentence=f"{sentence} {_capped(len(listed), len(lost))}",
        rows=tuple(_loss(item, rows) for item in listed),
        counts=_counts(lost, listed),
        compared=True,
        short=f"{figures.count(len(lost))} lost, {figures.count(gained)} gained",
    )


def _capped(listed: int, total: int) -> str:
    if total == 0:
        return "There is nothing to list."
    if listed == total:
        return "All are listed."
    return f"{listed} are listed, most of them from cells that do not pass; {figures.count(total - listed)} are not."


def _listed(lost: Sequence[Lost], rows: Mapping[Cell, CellRow]) -> list[Lost]:
    """At most ``CAP`` losses, from each cell in turn, most of them from cells that do not pass."""
    by_cell: dict[Cell, list[Lost]] = {}
    for item in sorted(lost, key=lambda item: (item.trial.seed, item.trial.trial_id)):
        by_cell.setdefault(item.trial.cell, []).append(item)
    order = sorted(by_cell, key=lambda cell: (_badness(rows, cell), -len(by_cell[cell]), cell))
    failing = [by_cell[cell] for cell in order if _badness(rows, cell) < len(_WORST_FIRST)]
    first = list(_in_turn(failing))[:FAILING_CAP]
    chosen = {item.trial.trial_id for item in first}
    rest = [item for item in _in_turn([by_cell[cell] for cell in order]) if item.trial.trial_id not in chosen]
    taken = [*first, *rest][:CAP]
    return sorted(taken, key=lambda item: (order.index(item.trial.cell), item.trial.depth, item.trial.seed))


def _badness(rows: Mapping[Cell, CellRow], cell: Cell) -> int:
    return _WORST_FIRST.get(rows[cell].kind, len(_WORST_FIRST)) if cell in rows else len(_WORST_FIRST)


def _in_turn(queues: list[list[Lost]]) -> Iterator[Lost]:
    for turn in range(max((len(queue) for queue in queues), default=0)):
        yield from (queue[turn] for queue in queues if turn < len(queue))


def _counts(lost: Sequence[Lost], listed: Sequence[Lost]) -> tuple[LossCount, ...]:
    everything = Counter(item.trial.cell for item in lost)
    shown = Counter(item.trial.cell for item in listed)
    return tuple(
        LossCount(cell=name(cell), lost=figures.count(n), listed=figures.count(shown[cell]))
        for cell, n in everything.most_common()
    )


def name(cell: Cell) -> str:
    """``multikey@8 · 4,096 · middle``, with the arm where it is not the default one."""
    arm = "" if cell.arm == "default" else f" · arm {cell.arm}"
    return f"{cell.task} · {figures.count(cell.length)} · {cell.band}{arm}"


def _loss(item: Lost, rows: Mapping[Cell, CellRow]) -> Loss:
    trial = item.trial
    row = rows.get(trial.cell)
    return Loss(
        cell=name(trial.cell),
        kind=row.kind if row else "plain",
        mark=row.mark if row else "",
        seed=str(trial.seed),
        depth=f"{100 * trial.depth:.1f}%",
        position=f"{trial.needle_start:,}–{trial.needle_end:,}",
        expected=excerpt(trial.expected),
        answer=excerpt(trial.answer),
        outcome="" if trial.outcome in {Outcome.WRONG, Outcome.EMPTY} else trial.outcome.value,
        baseline_answer="" if item.baseline_answer is None else excerpt(item.baseline_answer),
    )
