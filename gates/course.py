"""The course of a judgement over the looks: what each cell had come to when it was last asked.

A cell stays open until the bar and, with a baseline, the break bound have passed, each frozen at its own look, or
until either of its tests blocks. What is drawn later does not change a test that is frozen, so that a run which
stopped asking a decided cell and one which went on come to the same verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from evalgate.gates.absolute import Absolute, judge_bar
from evalgate.gates.paired import judge_pair
from evalgate.gates.plan import CellPlan, plan
from evalgate.gates.policy import Policy
from evalgate.gates.run_record import RunRecord
from evalgate.gates.verdict import PairedResult, Status, worst


class Course(NamedTuple):
    """One cell, as far as it was judged."""

    planned: CellPlan
    absolute: Absolute
    pair: PairedResult | None
    """None without a baseline, and in a guard cell."""

    @property
    def status(self) -> Status:
        """PASS where both tests have passed, BLOCK where one blocks."""
        return worst([self.absolute.status, *([] if self.pair is None else [self.pair.status])])

    @property
    def n(self) -> int:
        """Seeds that the cell was asked for."""
        return max(self.absolute.n, 0 if self.pair is None else self.pair.n)

    @property
    def open(self) -> bool:
        """Whether more seeds could still decide it; a guard cell has one look."""
        return self.planned.primary and self.status is Status.INCONCLUSIVE


def follow(run: RunRecord, baseline: RunRecord | None, policy: Policy, seeds: int) -> list[Course]:
    """Judge every cell look by look, in seed order, up to the largest look not above ``seeds``.

    It ends before where every cell is decided and, under ``stop_on_block``, where one blocks. Empty: no look is
    reached.
    """
    courses: list[Course] = []
    for courses in _steps(run, baseline, policy, seeds):  # noqa: B007 - the last one counts
        pass
    return courses


def _steps(run: RunRecord, baseline: RunRecord | None, policy: Policy, seeds: int) -> Iterator[list[Course]]:
    plans = plan(policy)
    courses: list[Course] = []
    for n in policy.looks:
        if n > seeds or (courses and not still_open(courses, policy)):
            return
        known: Sequence[Course | None] = courses or [None] * len(plans)
        courses = [_step(run, baseline, planned, n, old) for planned, old in zip(plans, known, strict=True)]
        yield courses


def still_open(courses: Sequence[Course], policy: Policy) -> list[Course]:
    """Cells that the next look would be about; none once a cell has blocked, if the policy stops there."""
    if policy.stop_on_block and any(course.status is Status.BLOCK for course in courses):
        return []
    return [course for course in courses if course.open]


def _step(run: RunRecord, baseline: RunRecord | None, planned: CellPlan, n: int, old: Course | None) -> Course:
    """Judge one cell at the look of ``n`` seeds: of its tests, those that are not frozen."""
    if old is not None and not old.open:
        return old
    at = n if planned.primary else planned.looks[0]
    absolute = old.absolute if old is not None else None
    if absolute is None or absolute.status is Status.INCONCLUSIVE:
        absolute = judge_bar(run, planned, at)
    pair = old.pair if old is not None else None
    if baseline is not None and planned.primary and (pair is None or pair.status is Status.INCONCLUSIVE):
        pair = judge_pair(run, baseline, planned, at)
    return Course(planned, absolute, pair)
