"""The bar: one cell's count against the integers that pass and block at its seeds."""

from __future__ import annotations

from typing import NamedTuple

from evalgate.gates.plan import CellPlan
from evalgate.gates.run_record import Tally
from evalgate.gates.verdict import Status
from evalgate.stats import block_max, exact, pass_min


class Absolute(NamedTuple):
    """What the bar alone says of one cell."""

    status: Status
    pass_min: int | None
    """None in a cell that may not pass, and where no count passes."""
    block_max: int | None


def judge_bar(tally: Tally, planned: CellPlan) -> Absolute:
    """Decide on integers: errors and missing trials fail in the PASS test and succeed in the BLOCK test."""
    bar = exact(planned.rule.min)
    least = pass_min(planned.n, bar, planned.pass_alpha) if planned.may_pass else None
    most = block_max(planned.n, bar, planned.block_alpha)
    if most is not None and tally.k + tally.unknown <= most:
        return Absolute(Status.BLOCK, least, most)
    if least is not None and tally.k >= least:
        return Absolute(Status.PASS, least, most)
    return Absolute(Status.INCONCLUSIVE, least, most)
