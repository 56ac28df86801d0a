"""Effective context: the longest length up to which every band of a task is shown to pass.

A length counts only where all bands of the task that a bar speaks of pass, and every shorter length does too: a model
that passes again further on is not trusted there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evalgate.gates.verdict import CellVerdict, EffectiveContext, Status
from evalgate.records import Cell


def effective_contexts(cells: Sequence[CellVerdict], asked: Iterable[Cell] = ()) -> list[EffectiveContext]:
    """One for each task and arm that a primary cell judges, in the order of ``cells``.

    ``asked`` are all cells of the run: a band that was asked and has no bar is not known to pass.  A guard cell never
    shows that its band passes; that it fails, it does.
    """
    deciding = [item for item in cells if item.tier == "primary" or item.status is Status.BLOCK]
    tasks = dict.fromkeys((item.cell.task, item.cell.arm) for item in cells if item.tier == "primary")
    bands = {task: {cell.band for cell in asked if (cell.task, cell.arm) == task} for task in tasks}
    return [_of([item for item in deciding if (item.cell.task, item.cell.arm) == task], bands[task]) for task in tasks]


def _of(cells: Sequence[CellVerdict], asked: set[str]) -> EffectiveContext:
    bands = asked | {item.cell.band for item in cells}
    lengths = sorted({item.cell.length for item in cells})
    at = {length: {item.cell.band: item.status for item in cells if item.cell.length == length} for length in lengths}
    passed: list[int] = []
    for length in lengths:
        if at[length].keys() != bands or set(at[length].values()) != {Status.PASS}:
            break
        passed.append(length)
    stopped = at[lengths[len(passed)]] if len(passed) < len(lengths) else {}
    return EffectiveContext(
        task=cells[0].cell.task,
        arm=cells[0].cell.arm,
        tokens=passed[-1] if passed else None,
        judged_to=lengths[-1],
        blocked_at=lengths[len(passed)] if Status.BLOCK in stopped.values() else None,
    )
