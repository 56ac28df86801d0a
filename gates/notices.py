"""Warnings: what a reader should know that does not decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalgate.gates.case import Case
from evalgate.gates.cell_names import name_cells
from evalgate.gates.finding import listed
from evalgate.gates.validity import exceeds
from evalgate.gates.verdict import CellVerdict, Churn, Floor, Notice
from evalgate.records import Manifest, Outcome, Rescored
from evalgate.stats import exact


def give_notices(case: Case, cells: Sequence[CellVerdict], floor: Floor, churn: Churn | None) -> list[Notice]:
    """List every warning that the judged case calls for."""
    return [Notice(code=code, detail=detail) for code, detail in _notices(case, cells, floor, churn)]


def _notices(case: Case, cells: Sequence[CellVerdict], floor: Floor, churn: Churn | None) -> Iterator[tuple[str, str]]:
    yield from _approval_notices(case)
    if case.run.manifest.rescored is not None:
        yield "rescored", _rescored(case.run.manifest.rescored, case.run.manifest.versions.get("scorer", "1"))
    if floor.status == "not-judged":
        yield "floor-not-judged", f"whether the set-up can retrieve at all was not judged: {floor.detail}"
    if churn is not None:
        yield from _churn_notices(churn)
    yield from _reach_notices(case, cells)
    yield from _share_notices(case)
    if case.baseline is not None:
        yield from _baseline_notices(case.run.manifest, case.baseline.manifest)


def _approval_notices(case: Case) -> Iterator[tuple[str, str]]:
    """A bar that was loosened, or a profile that got harsher, stays in sight for as long as it is used."""
    for code, document in (("policy-loosened", case.policy), ("profile-harsher", case.run.profile)):
        if document is not None and document.evidence is not None:
            shown = document.evidence
            what = f"{document.ref} is weaker than the version before it ({'; '.join(shown.changes)})"
            who = f"approved by {document.approver}: {document.reason}"
            yield code, f"{what}, {who}; on run {shown.run} ({shown.verdict}: {shown.status})"


def _rescored(origin: Rescored, scorer: str) -> str:
    left = f"; {origin.left} answers were redacted and keep their outcome" if origin.left else ""
    return (
        f"answers of run {origin.run_id[:12]} were judged anew by scorer {scorer} (first by {origin.scorer}): "
        f"{len(origin.flips)} outcomes flipped{left}"
    )


def _baseline_notices(own: Manifest, other: Manifest) -> Iterator[tuple[str, str]]:
    if own.model.weights_sha256 != other.model.weights_sha256:
        yield "baseline-other-model", f"the baseline ran {other.model.name} with other weights than {own.model.name}"
    elif own.profile != other.profile and own.engine.backend == other.engine.backend:
        # The sign of a setting that is reported and not live: recall is kept because nothing was compressed.
        ours, theirs = (manifest.engine.bytes_per_session.get("total") for manifest in (own, other))
        if ours is not None and theirs is not None and ours >= theirs:
            held = f"profile {own.profile.name} holds {ours} bytes per session"
            yield "no-bytes-saved", f"{held}, no fewer than the {theirs} of the baseline's {other.profile.name}"


def _churn_notices(churn: Churn) -> Iterator[tuple[str, str]]:
    flips = churn.lost + churn.gained
    if flips == 0:
        yield "no-headroom", f"no answer of {churn.n} differs from the baseline's; a harder suite would tell more"
    elif exceeds(flips, churn.n, exact(churn.limit)):
        yield "churn", f"{flips} of {churn.n} answers flipped against the baseline, above {churn.limit:.1%}"


def _reach_notices(case: Case, cells: Sequence[CellVerdict]) -> Iterator[tuple[str, str]]:
    seeds, n = case.run.manifest.seeds, max(case.counted.values())
    if seeds > n:
        yield "seeds-not-counted", f"the run has {seeds} seeds; the policy counts the first {n}"
    gated = list(case.policy.rules)
    judged = set(gated)
    ungated = [cell for cell in case.run.planned if cell not in judged]
    if ungated:
        yield "ungated-cells", f"the run asked {len(ungated)} cells that the policy does not judge: {listed(ungated)}"
    mute = [cell.cell for cell in cells if cell.block_max is None]
    if mute:
        yield "block-unattainable", f"no count blocks in {name_cells(mute, gated)}: too few seeds for the budget"
    if case.policy.kind == "release":
        deaf = [cell.cell for cell in cells if cell.tier == "primary" and cell.pass_min is None]
        if deaf:
            yield "pass-unattainable", f"no count passes in {name_cells(deaf, gated)}: too few seeds for the bar"
        stiff = [cell.cell for cell in cells if cell.baseline is not None and cell.baseline.breaks_max is None]
        if stiff:
            where = name_cells(stiff, gated)
            yield "break-bound-unattainable", f"no count shows the break margin in {where}: too few seeds"


def _share_notices(case: Case) -> Iterator[tuple[str, str]]:
    limits = case.policy.validity
    for outcome, limit in (
        (Outcome.TRUNCATED, limits.max_truncated_share),
        (Outcome.EMPTY, limits.max_empty_share),
    ):
        over = []
        for cell, n in case.counted.items():
            count = case.run.tally(cell, n).outcomes[outcome]
            if exceeds(count, n, limit):
                over.append(f"{cell} ({count} of {n})")
        if over:
            yield f"{outcome}-answers", f"{outcome} answers, counted as failures, in {listed(over)}"
