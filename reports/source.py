"""What a report is built from: the records of one run, and the trials that a verdict counted.

It reads no files; ``page.py`` brings the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from evalgate.gates.verdict import Verdict
from evalgate.records import Cell, Context, Manifest, Outcome, Trial


class Source(NamedTuple):
    """The records of one complete run."""

    manifest: Manifest
    trials: Sequence[Trial]
    contexts: Sequence[Context]


class Counts(NamedTuple):
    """Of ``n`` trials, ``k`` are correct and ``errors`` never gave an answer."""

    n: int
    k: int
    errors: int


class Pair(NamedTuple):
    """One cell over the trials that both runs hold with the same prompt."""

    n: int
    k_baseline: int
    lost: int
    gained: int


def judged(trials: Sequence[Trial], verdict: Verdict | None) -> list[Trial]:
    """The trials that the verdict counted: of each cell seeds 0 .. n-1; all of them where nothing was counted."""
    if verdict is None or verdict.n is None:
        return list(trials)
    limits = {item.cell: max(item.n, item.baseline.n if item.baseline else 0) for item in verdict.cells}
    return [trial for trial in trials if trial.seed < limits.get(trial.cell, verdict.n)]


def right(trial: Trial) -> bool | None:
    """Whether the answer is right; None where there is no answer to judge."""
    return None if trial.outcome is Outcome.ERROR else trial.outcome is Outcome.CORRECT


def tally(trials: Iterable[Trial]) -> dict[Cell, Counts]:
    """Count the trials of each cell."""
    found: dict[Cell, list[int]] = {}
    for trial in trials:
        numbers = found.setdefault(trial.cell, [0, 0, 0])
        numbers[0] += 1
        numbers[1] += trial.outcome is Outcome.CORRECT
        numbers[2] += trial.outcome is Outcome.ERROR
    return {cell: Counts(*numbers) for cell, numbers in found.items()}


def partners(trials: Iterable[Trial], baseline: Iterable[Trial]) -> list[tuple[Trial, Trial]]:
    """(baseline trial, candidate trial) for every trial that both runs asked with the same prompt."""
    known = {(trial.trial_id, trial.prompt_sha256): trial for trial in baseline}
    found = ((known.get((trial.trial_id, trial.prompt_sha256)), trial) for trial in trials)
    return [(old, new) for old, new in found if old is not None]


def pairs(partnered: Iterable[tuple[Trial, Trial]]) -> dict[Cell, Pair]:
    """Count what was lost and gained in each cell."""
    found: dict[Cell, list[int]] = {}
    for old, new in partnered:
        was, now = right(old), right(new)
        numbers = found.setdefault(new.cell, [0, 0, 0, 0])
        for at, holds in enumerate((True, was is True, was is True and now is False, was is False and now is True)):
            numbers[at] += holds
    return {cell: Pair(*numbers) for cell, numbers in found.items()}


class Group(NamedTuple):
    """One task in one arm, with the lengths and bands that the plan asks, in the suite's order."""

    task: str
    arm: str
    lengths: tuple[int, ...]
    bands: tuple[str, ...]

    @property
    def title(self) -> str:
        """``multikey@8``, with the arm where it is not the default one."""
        return self.task if self.arm == "default" else f"{self.task} · arm {self.arm}"

    def cells(self) -> list[Cell]:
        """Every cell of the group, by length, then band."""
        return [Cell(self.task, length, band, self.arm) for length in self.lengths for band in self.bands]


def planned(manifest: Manifest) -> list[Cell]:
    """Every cell that the run's plan asks, in its order."""
    return [Cell(*cell) for cell in manifest.cells]


def groups(cells: Iterable[Cell]) -> list[Group]:
    """The tasks x arms that the cells name, in order of appearance; lengths ascending."""
    lengths: dict[tuple[str, str], dict[int, None]] = {}
    bands: dict[tuple[str, str], dict[str, None]] = {}
    for cell in cells:
        lengths.setdefault((cell.task, cell.arm), {})[cell.length] = None
        bands.setdefault((cell.task, cell.arm), {})[cell.band] = None
    return [Group(task, arm, tuple(sorted(lengths[task, arm])), tuple(bands[task, arm])) for task, arm in lengths]
