"""Warnings: what a reader should know that does not decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalgate.gates.case import Case
from evalgate.gates.finding import listed
from evalgate.gates.validity import exceeds
from evalgate.gates.verdict import CellVerdict, Churn, Floor, Notice
from evalgate.records import Outcome
from evalgate.stats import exact


def give_notices(case: Case, cells: Sequence[CellVerdict], floor: Floor, churn: Churn | None) -> list[Notice]:
    """List every warning that the judged case calls for."""
    return [Notice(code=code, detail=detail) for code, detail in _notices(case, cells, floor, churn)]


def _notices(case: Case, cells: Sequence[CellVerdict], floor: Floor, churn: Churn | None) -> Iterator[tuple[str, str]]:
    if floor.status == "not-judged":
        yield "floor-not-judged", f"whether the set-up can retrieve at all was not judged: {floor.detail}"
    if churn is not None:
        yield from _churn_notices(churn)
    yield from _reach_notices(case, cells)
    yield from _share_notices(case)
    if case.baseline is not None:
        own, other = case.run.manifest.model, case.baseline.manifest.model
        if own.weights_sha256 != other.weights_sha256:
            yield "baseline-other-model", f"the baseline ran {other.name} with other weights than {own.name}"


def _churn_notices(churn: Churn) -> Iterator[tuple[str, str]]:
    flips = churn.lost + churn.gained
    if flips == 0:
        yield "no-headroom", f"no answer of {churn.n} differs from the baseline's; a harder suite would tell more"
    elif exceeds(flips, churn.n, exact(churn.limit)):
        yield "churn", f"{flips} of {churn.n} answers flipped against the baseline, above {churn.limit:.1%}"


def _reach_notices(case: Case, cells: Sequence[CellVerdict]) -> Iterator[tuple[str, str]]:
    seeds, n = case.run.manifest.seeds, max(planned.n for planned in case.plans)
    if seeds > n:
        yield "seeds-not-counted", f"the run has {seeds} seeds; the policy counts the first {n}"
    gated = {planned.cell for planned in case.plans}
    ungated = [cell for cell in case.run.planned if cell not in gated]
    if ungated:
        yield "ungated-cells", f"the run asked {len(ungated)} cells that the policy does not judge: {listed(ungated)}"
    if case.policy.kind == "release":
        deaf = [cell.cell for cell in cells if cell.tier == "primary" and cell.pass_min is None]
        if deaf:
            yield "pass-unattainable", f"no count passes in {listed(deaf)}: too few seeds for the bar"
        stiff = [cell.cell for cell in cells if cell.baseline is not None and cell.baseline.breaks_max is None]
        if stiff:
            yield "break-bound-unattainable", f"no count shows the break margin in {listed(stiff)}: too few seeds"


def _share_notices(case: Case) -> Iterator[tuple[str, str]]:
    limits = case.policy.validity
    for outcome, limit in (
        (Outcome.TRUNCATED, limits.max_truncated_share),
        (Outcome.EMPTY, limits.max_empty_share),
    ):
        over = []
        for planned in case.plans:
            count = case.run.tally(planned.cell, planned.n).outcomes[outcome]
            if exceeds(count, planned.n, limit):
                over.append(f"{planned.cell} ({count} of {planned.n})")
        if over:
            yield f"{outcome}-answers", f"{outcome} answers, counted as failures, in {listed(over)}"
