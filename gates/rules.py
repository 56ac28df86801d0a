"""The judge: a pure function of a run, a policy and a baseline. It reads no file, no clock and no environment."""

from __future__ import annotations

from collections.abc import Sequence

from evalgate.errors import MismatchError
from evalgate.gates.case import Case
from evalgate.gates.course import Course, follow
from evalgate.gates.effective_context import effective_contexts
from evalgate.gates.explanation import tell_cell, tell_error, tell_verdict
from evalgate.gates.finding import Finding
from evalgate.gates.floor import floor_finding, judge_floor
from evalgate.gates.notices import give_notices
from evalgate.gates.paired import find_flips, measure_churn
from evalgate.gates.policy import CellRule, Policy
from evalgate.gates.profile import Profile
from evalgate.gates.run_record import RunRecord
from evalgate.gates.validity import conditions, structure
from evalgate.gates.verdict import CellLook, CellVerdict, Floor, Reason, Status, Verdict, worst
from evalgate.records import Cell, Manifest, Trial
from evalgate.stats import clopper_pearson, lower_bound, seeds_to_pass


def judge(
    manifest: Manifest,
    trials: Sequence[Trial],
    policy: Policy,
    baseline: tuple[Manifest, Sequence[Trial]] | None = None,
    *,
    profile: Profile | None = None,
    baseline_profile: Profile | None = None,
) -> Verdict:
    """Judge a run under ``policy``, look by look up to the largest not above its seeds.

    ``profile`` and ``baseline_profile`` are what the two runs were asked to run, to hold the effective settings
    against; without them a policy that requires effective profiles finds ERROR.

    Raises MismatchError (the run is of another suite than the policy's, or the baseline cannot be used at all).
    Everything else is said by the verdict.
    """
    run = RunRecord(manifest, trials, profile)
    other = None if baseline is None else RunRecord(*baseline, baseline_profile)
    _refuse(run, policy, other)
    courses = follow(run, other, policy, manifest.seeds)
    n = max((course.n for course in courses if course.planned.primary), default=None)
    case = Case(run, policy, other, n, courses)
    findings = structure(case)
    if n is None or any(finding.failed for finding in findings):
        return _invalid(case, findings, None)
    floor = judge_floor(run, other, policy, case.counted)
    findings += [*conditions(case), floor_finding(floor)]
    if any(finding.failed for finding in findings):
        return _invalid(case, findings, floor)
    return _decide(case, n, findings, floor)


def _refuse(run: RunRecord, policy: Policy, baseline: RunRecord | None) -> None:
    suite = f"{run.manifest.suite.name}@{run.manifest.suite.version}"
    if suite != policy.suite:
        raise MismatchError(
            f"run {run.manifest.run_id} is of suite {suite}, and policy {policy.ref} judges {policy.suite}; "
            "choose a policy for the run's suite, or run the policy's suite"
        )
    if baseline is None:
        return
    if policy.baseline.use == "none":
        raise MismatchError(f"policy {policy.ref} uses no baseline, and one was given; leave --baseline out")
    if baseline.manifest.run_id == run.manifest.run_id:
        raise MismatchError(f"run {run.manifest.run_id} was given as its own baseline; give another run")


def _decide(case: Case, n: int, findings: Sequence[Finding], floor: Floor) -> Verdict:
    smoke = case.policy.kind == "smoke"
    cells = [_cell_verdict(course) for course in case.courses]
    # Every primary cell must pass; a guard cell has no say unless it blocks.
    status = worst(cell.status for cell in cells if cell.tier == "primary" or cell.status is Status.BLOCK)
    flips, churn = [], None
    if case.baseline is not None:
        compared = {c.planned.cell: c.n if c.pair is None else c.pair.n for c in case.courses}
        flips = find_flips(case.run, case.baseline, compared)
        churn = measure_churn(flips, compared, case.policy.churn_margin)
    verdict = _verdict(
        case,
        status=status,
        reason=tell_verdict(status, cells, n, smoke=smoke),
        reason_code=_reason_code(status, cells, smoke=smoke),
        cells=cells,
        findings=findings,
        floor=floor,
    )
    warnings = give_notices(case, cells, floor, churn)
    reach = effective_contexts(cells, case.run.planned)
    return verdict.model_copy(update={"flips": flips, "churn": churn, "warnings": warnings, "effective_context": reach})


def _reason_code(status: Status, cells: Sequence[CellVerdict], *, smoke: bool) -> Reason:
    if status is Status.PASS:
        return Reason.ALL_PASSED
    if status is Status.BLOCK:
        return Reason.BELOW_BAR if any(cell.absolute is Status.BLOCK for cell in cells) else Reason.REGRESSION
    return Reason.NO_REGRESSION_SEEN if smoke else Reason.UNDECIDED


def _cell_verdict(course: Course) -> CellVerdict:
    planned, absolute, pair = course
    tally = absolute.tally
    return CellVerdict(
        cell=planned.cell,
        tier=planned.rule.tier,
        status=course.status,
        reason=tell_cell(course),
        n=tally.n,
        k=tally.k,
        errors=tally.errors,
        missing=tally.missing,
        outcomes=tally.by_name,
        bar=planned.rule.min,
        interval=clopper_pearson(tally.k, tally.n),
        lower_bound=lower_bound(tally.k, tally.n, planned.pass_alpha),
        pass_min=absolute.pass_min,
        block_max=absolute.block_max,
        absolute=absolute.status,
        n_needed=_seeds_needed(course),
        looks=[CellLook(n=at.n, pass_min=at.pass_min, block_max=at.block_max) for at in planned.bounds],
        baseline=pair,
    )


def _seeds_needed(course: Course) -> int | None:
    """Seeds at which the shares that were seen would pass: a later look, or any number where there is but one look."""
    planned, absolute, pair = course
    if course.status is not Status.INCONCLUSIVE or not planned.may_pass:
        return None
    k, n = absolute.tally.k, absolute.n
    breaks, compared = (0, 1) if pair is None else (pair.breaks, pair.n)
    if len(planned.looks) == 1:
        margin = None if pair is None else planned.margin
        return seeds_to_pass(k, n, planned.rule.min, planned.pass_alpha, breaks=breaks, margin=margin)
    for at in planned.bounds:
        passes = absolute.status is Status.PASS or (at.pass_min is not None and at.n * k // n >= at.pass_min)
        keeps = (
            pair is None
            or pair.status is Status.PASS
            or (at.breaks_max is not None and -(-at.n * breaks // compared) <= at.breaks_max)
        )
        if at.n > course.n and passes and keeps:
            return at.n
    return None


def _invalid(case: Case, findings: Sequence[Finding], floor: Floor | None) -> Verdict:
    """Say what is broken. Cells carry their counts and no recall: an invalid run says nothing about the model."""
    failed = [finding for finding in findings if finding.failed]
    faults = {cell: finding.check.name for finding in reversed(failed) for cell in finding.cells}
    seeds = case.counted
    reason_code = failed[0].reason
    assert reason_code is not None, "a failed finding has a reason"
    return _verdict(
        case,
        status=Status.ERROR,
        reason=tell_error(failed),
        reason_code=reason_code,
        cells=[
            _unjudged(case.run, cell, rule, seeds.get(cell, 0), faults.get(cell))
            for cell, rule in case.policy.rules.items()
        ],
        findings=findings,
        floor=floor,
    )


def _unjudged(run: RunRecord, cell: Cell, rule: CellRule, n: int, fault: str | None) -> CellVerdict:
    tally = run.tally(cell, n)
    return CellVerdict(
        cell=cell,
        tier=rule.tier,
        status=Status.ERROR,
        reason="not judged: the run is not valid" if fault is None else f"not judged: failed the check {fault!r}",
        n=tally.n,
        k=tally.k,
        errors=tally.errors,
        missing=tally.missing,
        outcomes=tally.by_name,
        bar=rule.min,
        interval=None,
        lower_bound=None,
        pass_min=None,
        block_max=None,
        absolute=Status.ERROR,
    )


def _verdict(
    case: Case,
    *,
    status: Status,
    reason: str,
    reason_code: Reason,
    cells: list[CellVerdict],
    findings: Sequence[Finding],
    floor: Floor | None,
) -> Verdict:
    policy = case.policy
    return Verdict(
        status=status,
        reason=reason,
        reason_code=reason_code,
        on_inconclusive=policy.on_inconclusive,
        policy=policy.id,
        policy_body=policy.model_dump(mode="json", by_alias=True),
        run=case.run.ref,
        baseline_run=None if case.baseline is None else case.baseline.ref,
        n=case.n,
        looks=policy.looks,
        cells=cells,
        validity=[finding.check for finding in findings],
        floor=floor,
    )
