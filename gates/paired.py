"""The run against its baseline, trial by trial on the same prompts: breaks, McNemar, flips and churn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalgate.gates.plan import CellPlan
from evalgate.gates.run_record import RunRecord
from evalgate.gates.verdict import Churn, Flip, PairedLook, PairedResult, Status
from evalgate.records import Cell, Outcome, Trial
from evalgate.stats import mcnemar, mcnemar_min

BACKEND_CHURN = 0.01
"""Churn of a backend against itself that is assumed until it has been measured."""


def judge_pair(run: RunRecord, baseline: RunRecord, planned: CellPlan, n: int) -> PairedResult:
    """Compare one cell at the look of ``n`` seeds.

    BLOCK by exact McNemar at what this look may spend; PASS by the break bound, the test of the bar on 1 - breaks/n
    with bar 1 - margin, so that gains do not buy back losses. An unknown outcome, in either run, is what favours the
    candidate in the BLOCK test and what is against it in the PASS test.
    """
    b = c = breaks = k_baseline = 0
    for own, other in run.pairs(baseline, planned.cell, n):
        mine, theirs = _right(own), _right(other)
        k_baseline += theirs is True
        b += mine is False and theirs is True
        c += mine is not False and theirs is not True
        breaks += mine is not True and theirs is not False
    bounds = planned.at(n)
    b_min = mcnemar_min(b + c, bounds.paired_alpha)
    most = bounds.breaks_max
    if b_min is not None and b >= b_min:
        status = Status.BLOCK
    elif planned.may_pass and most is not None and breaks <= most:
        status = Status.PASS
    else:
        status = Status.INCONCLUSIVE
    return PairedResult(
        n=n,
        k_baseline=k_baseline,
        b=b,
        c=c,
        p_value=mcnemar(b, c),
        alpha=float(bounds.paired_alpha),
        b_min=b_min,
        breaks=breaks,
        breaks_max=most,
        margin=float(planned.margin),
        status=status,
        looks=[PairedLook(n=at.n, breaks_max=at.breaks_max, alpha=float(at.paired_alpha)) for at in planned.bounds],
    )


def find_flips(run: RunRecord, baseline: RunRecord, counted: Mapping[Cell, int]) -> list[Flip]:
    """List every trial that changed between right and wrong in the ``counted`` seeds of each cell, lost ones first.

    Errors are no answers.
    """
    flips = []
    for cell, n in counted.items():
        for own, other in run.pairs(baseline, cell, n):
            if own is not None and other is not None and {_right(own), _right(other)} == {True, False}:
                flips.append(_flip(own, other))
    return sorted(flips, key=lambda flip: flip.kind != "lost")


def measure_churn(flips: Sequence[Flip], counted: Mapping[Cell, int], margin: float) -> Churn:
    """Count the flips over all judged cells; ``limit`` is the backend's own churn plus the policy's margin."""
    lost = sum(flip.kind == "lost" for flip in flips)
    return Churn(n=sum(counted.values()), lost=lost, gained=len(flips) - lost, limit=BACKEND_CHURN + margin)


def _right(trial: Trial | None) -> bool | None:
    """Whether the answer is right; None where there is no answer to judge."""
    if trial is None or trial.outcome == Outcome.ERROR:
        return None
    return trial.outcome == Outcome.CORRECT


def _flip(own: Trial, other: Trial) -> Flip:
    return Flip(
        trial_id=own.trial_id,
        seed=own.seed,
        cell=own.cell,
        depth=own.depth,
        expected=own.expected,
        baseline_answer=other.answer,
        candidate_answer=own.answer,
        candidate_outcome=own.outcome,
        kind="lost" if _right(other) else "gained",
    )
