"""The case: everything that one judgement looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evalgate.gates.plan import CellPlan
from evalgate.gates.policy import Policy
from evalgate.gates.run_record import RunRecord


class Case(NamedTuple):
    """A run before a policy, with the baseline if there is one."""

    run: RunRecord
    policy: Policy
    baseline: RunRecord | None
    n: int | None
    """Seeds of the look; None where the run has too few for any."""
    plans: Sequence[CellPlan]
    """Every cell of the policy at the look; empty where there is no look."""
