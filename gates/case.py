"""The case: everything that one judgement looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evalgate.gates.course import Course
from evalgate.gates.policy import Policy
from evalgate.gates.run_record import RunRecord
from evalgate.records import Cell


class Case(NamedTuple):
    """A run before a policy, with the baseline if there is one."""

    run: RunRecord
    policy: Policy
    baseline: RunRecord | None
    n: int | None
    """Seeds of the last look that was judged; None where the run has too few for any."""
    courses: Sequence[Course]
    """Every cell of the policy as far as it was judged; empty where there is no look."""

    @property
    def counted(self) -> Mapping[Cell, int]:
        """Cell of the policy -> seeds that count in it."""
        return {course.planned.cell: course.n for course in self.courses}
