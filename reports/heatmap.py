"""Recall by length and depth, one table a task: ten depths down, the lengths across.

A heat map is for seeing where recall goes; it decides nothing.
Trials of one bin can come from the same haystack (two bands meet in a bin), so no interval is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalgate.records import Outcome, Trial
from evalgate.reports import figures
from evalgate.reports.source import Group

BINS = 10
WHOLE = "all"
"""The band of tasks that need the whole context: they have no depth."""

_STEPS = ((95, "h4"), (90, "h3"), (75, "h2"), (50, "h1"))

LEGEND = (
    ("h5", "100%"),
    ("h4", "95 to under 100%"),
    ("h3", "90 to under 95%"),
    ("h2", "75 to under 90%"),
    ("h1", "50 to under 75%"),
    ("h0", "under 50%"),
    ("hx", "no trials"),
)
"""CSS class of each step and the words for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """Share of right answers in one bin: words first, the step only colours them."""

    ratio: str
    percent: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """One depth: ``30–40%``, or ``whole context`` for tasks without a depth."""

    label: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatTable:
    """One run's heat map of one task."""

    who: str
    """``candidate``, ``baseline`` or ``this run``."""
    lengths: tuple[str, ...]
    rows: tuple[HeatRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatPair:
    """One task: the candidate's heat map and, where there is a baseline, its own beside it."""

    title: str
    anchor: str
    tables: tuple[HeatTable, ...]


def pair(group: Group, at: int, trials: Sequence[Trial], baseline: Sequence[Trial] | None) -> HeatPair:
    """Build the heat maps of one task."""
    tables = [_table(group, "this run" if baseline is None else "candidate", trials)]
    if baseline is not None:
        tables.append(_table(group, "baseline", baseline))
    return HeatPair(title=group.title, anchor=f"heat-{at}", tables=tuple(tables))


def _table(group: Group, who: str, trials: Sequence[Trial]) -> HeatTable:
    labels = [f"{100 * at // BINS}–{100 * (at + 1) // BINS}%" for at in range(BINS)]
    if group.bands == (WHOLE,):
        labels = ["whole context"]
    counts = {(length, at): [0, 0] for length in group.lengths for at in range(len(labels))}
    for trial in trials:
        if (trial.task, trial.arm) != (group.task, group.arm) or trial.length not in group.lengths:
            continue
        number = counts[trial.length, 0 if len(labels) == 1 else depth_bin(trial.depth)]
        number[0] += trial.outcome is Outcome.CORRECT
        number[1] += 1
    return HeatTable(
        who=who,
        lengths=tuple(figures.count(length) for length in group.lengths),
        rows=tuple(
            HeatRow(label=label, cells=tuple(_cell(*counts[length, at]) for length in group.lengths))
            for at, label in enumerate(labels)
        ),
    )


def depth_bin(depth: float) -> int:
    """Bin of a depth in [0, 1]: intervals are closed below and open above, the last one closed."""
    return min(int(depth * BINS), BINS - 1)


def step(k: int, n: int) -> str:
    """Step of the colour scale for ``k`` of ``n``, on whole numbers."""
    if n == 0:
        return "hx"
    if k == n:
        return "h5"
    return next((name for least, name in _STEPS if 100 * k >= least * n), "h0")


def _cell(k: int, n: int) -> HeatCell:
    if n == 0:
        return HeatCell(ratio="none", percent="", step="hx")
    return HeatCell(ratio=figures.ratio(k, n), percent=figures.percent(k, n), step=step(k, n))
