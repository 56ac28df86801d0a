"""The bar: one cell's count against the integers that pass and block at its seeds."""

from __future__ import annotations

from typing import NamedTuple

from evalgate.gates.plan import CellPlan
from evalgate.gates.run_record import RunRecord, Tally
from evalgate.gates.verdict import Status


class Absolute(NamedTuple):
    """What the bar alone says of one cell at a look."""

    status: Status
    tally: Tally
    pass_min: int | None
    """None in a cell that may not pass, and where no count passes."""
    block_max: int | None

    @property
    def n(self) -> int:
        """Seeds of the look."""
        return self.tally.n


def judge_bar(run: RunRecord, planned: CellPlan, n: int) -> Absolute:
    """Decide on integers: errors and missing trials fail in the PASS test and succeed in the BLOCK test."""
    tally = run.tally(planned.cell, n)
    bounds = planned.at(n)
    if bounds.block_max is not None and tally.k + tally.unknown <= bounds.block_max:
        status = Status.BLOCK
    elif bounds.pass_min is not None and tally.k >= bounds.pass_min:
        status = Status.PASS
    else:
        status = Status.INCONCLUSIVE
    return Absolute(status, tally, bounds.pass_min, bounds.block_max)
