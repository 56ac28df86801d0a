"""The schedule of a run that is drawn look by look: how far each cell is asked, and what the next look asks.

It is a function of the policy and of what the judge says so far, so that a run which was killed goes on as it would
have gone on. Seeds of a cell are always 0 .. asked-1: one number says which of its trials are planned.
"""

from __future__ import annotations

from collections.abc import Sequence

from evalgate.gates.plan import first_seeds
from evalgate.gates.policy import Policy
from evalgate.gates.verdict import Status, Verdict
from evalgate.records import Cell, Schedule


def begin(policy: Policy, cells: Sequence[Cell], baseline: str | None) -> Schedule:
    """The first look: guard cells are asked all that they need, cells that the policy does not judge no more than that.

    ``baseline`` is the ``run_id`` of the run that will be compared with.
    """
    first, rules = first_seeds(policy), policy.rules
    guards = {cell for cell, rule in rules.items() if rule.tier == "guard"}
    asked = [policy.n_guard if cell in guards else first for cell in cells]
    return Schedule(policy=policy.id, baseline=baseline, asked=asked)


def extend(schedule: Schedule, policy: Policy, cells: Sequence[Cell], verdict: Verdict) -> Schedule | None:
    """The schedule up to the next look, for the cells that ``verdict`` leaves open; None: there is nothing to ask.

    A run that is not valid asks no more, as nothing that comes later would mend it.
    """
    stopped = verdict.status is Status.BLOCK and policy.stop_on_block
    following = [n for n in policy.looks if n > max(schedule.asked)]
    if stopped or verdict.status is Status.ERROR or not following:
        return None
    still = {cell.cell for cell in verdict.cells if cell.tier == "primary" and cell.status is Status.INCONCLUSIVE}
    asked = [following[0] if cell in still else n for cell, n in zip(cells, schedule.asked, strict=True)]
    return schedule.model_copy(update={"asked": asked}) if still else None


def told_schedule(schedule: Schedule | None) -> str:
    """What decided how long each cell was asked, in words."""
    if schedule is None:
        return "every seed of every cell"
    baseline = "no baseline" if schedule.baseline is None else f"baseline {schedule.baseline[:12]}"
    return f"the looks of policy {schedule.policy.name}@{schedule.policy.version} with {baseline}"
