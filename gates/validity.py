"""Validity: the conditions that a run must meet before its recall means anything. A failed one is ERROR."""

from __future__ import annotations

from collections.abc import Sequence

from evalgate.gates.case import Case
from evalgate.gates.comparable import baseline_check, comparable_check
from evalgate.gates.effective import profile_faults
from evalgate.gates.finding import Finding, failed, listed, not_applicable, ok
from evalgate.gates.policy import Policy
from evalgate.gates.run_record import RunRecord
from evalgate.gates.verdict import Reason
from evalgate.records import Outcome
from evalgate.stats import Number, exact


def structure(case: Case) -> list[Finding]:
    """Check that there is something to judge at all; where one of these fails, nothing is counted."""
    return [
        _rules(case.policy),
        _complete(case.run),
        _not_empty(case.run),
        _duplicates(case.run),
        _planned(case.run),
        _every_cell(case.run, case.policy),
        _enough_seeds(case.run, case.policy, case.n),
    ]


def conditions(case: Case) -> list[Finding]:
    """Check everything that needs trials to be counted, in the order in which reasons are given."""
    limits = case.policy.validity
    return [
        _effective(case),
        _drawn(case),
        baseline_check(case.policy, case.counted, case.baseline),
        comparable_check(case.run, case.counted, case.baseline),
        _tokens(case),
        _warm(case),
        _errors(case),
        _share(case, Outcome.TRUNCATED, limits.max_truncated_share, Reason.TOO_MANY_TRUNCATED),
        _share(case, Outcome.EMPTY, limits.max_empty_share, Reason.TOO_MANY_EMPTY),
    ]


def exceeds(count: int, n: int, limit: Number) -> bool:
    """Whether count/n is above ``limit``, decided on integers; 0 of 0 is not."""
    return count > exact(limit) * n


def _rules(policy: Policy) -> Finding:
    """A policy is read with at least one cell; one that is made otherwise must not pass a run on nothing."""
    if any(rule.tier == "primary" for rule in policy.rules.values()):
        return ok("rules", f"{len(policy.rules)} cells are judged")
    detail = f"policy {policy.ref} has no primary cell, so nothing in it could pass; give it one"
    return failed("rules", Reason.NO_RULES, detail)


def _complete(run: RunRecord) -> Finding:
    status = run.manifest.status
    if status == "complete":
        return ok("complete", "the run finished")
    return failed(
        "complete",
        Reason.RUN_INCOMPLETE,
        f"the run's status is {status}, expected complete; run the same command again to resume it",
    )


def _not_empty(run: RunRecord) -> Finding:
    if run.size:
        return ok("trials", f"{run.size} trials")
    return failed("trials", Reason.EMPTY_RUN, "the run holds no trials; run the suite again")


def _duplicates(run: RunRecord) -> Finding:
    if not run.duplicates:
        return ok("duplicates", "no trial is counted twice")
    detail = f"found trials that are held twice ({listed(run.duplicates)}), expected each once; run the suite again"
    return failed("duplicates", Reason.DUPLICATE_TRIALS, detail)


def _planned(run: RunRecord) -> Finding:
    if not run.unplanned:
        return ok("planned", "every trial is of a cell and seed that the plan names")
    cells = list(dict.fromkeys(trial.cell for trial in run.unplanned))
    seeds = sorted({trial.seed for trial in run.unplanned})
    return failed(
        "planned",
        Reason.UNPLANNED_TRIALS,
        "found trials of cells or seeds that the run's plan does not name "
        f"(cells {listed(cells)}; seeds {listed(seeds)} of {run.manifest.seeds}); run the suite again",
        cells,
    )


def _every_cell(run: RunRecord, policy: Policy) -> Finding:
    # The policy's cells and the plan's: one that was never run must not look like one that passed.
    required = list(dict.fromkeys([*policy.rules, *run.planned]))
    missing = [cell for cell in required if cell not in run]
    if not missing:
        return ok("cells", f"all {len(required)} cells have trials")
    planned = set(run.planned)
    unasked = [cell for cell in missing if cell not in planned]
    if unasked:
        why = f"the policy needs {listed(unasked)}, which the run does not plan; run the policy's suite whole"
    else:
        why = f"the run holds no trial of {_gap(run, missing)}, which its plan names; run the same command again"
    return failed("cells", Reason.MISSING_CELLS, f"{len(missing)} of {len(required)} cells are missing: {why}", missing)


def _gap(run: RunRecord, missing: Sequence[object]) -> str:
    """Name a whole missing length or task as such, else the cells."""
    for field in ("length", "task", "band", "arm"):
        values = {getattr(cell, field) for cell in missing}
        rest = {getattr(cell, field) for cell in run.planned if cell in run}
        if len(values) == 1 and not values & rest:
            return f"{field} {values.pop()}"
    return listed(missing)


def _enough_seeds(run: RunRecord, policy: Policy, n: int | None) -> Finding:
    seeds = run.manifest.seeds
    guards = any(rule.tier == "guard" for rule in policy.cells)
    if n is None:
        needed = policy.looks[0]
    elif guards and seeds < policy.n_guard:
        needed = policy.n_guard
    else:
        return ok("seeds", f"judged at {n} of {seeds} seeds")
    detail = f"the run has {seeds} seeds, policy {policy.ref} judges from {needed}; run with --seeds {needed}"
    return failed("seeds", Reason.TOO_FEW_SEEDS, detail)


def _drawn(case: Case) -> Finding:
    """A run that was drawn look by look stopped asking cells that were decided then; here they must be so too."""
    asked = [(cell, n, case.run.asked(cell)) for cell, n in case.counted.items()]
    short = [(cell, n, seeds) for cell, n, seeds in asked if seeds < n]
    if not short:
        return ok("drawn", "the run's plan asks every cell for the seeds that are counted")
    shown = listed([f"{cell}: {seeds} of {n} seeds" for cell, n, seeds in short])
    drawn = case.run.drawn_for
    return failed(
        "drawn",
        Reason.NOT_DRAWN,
        f"the run stopped asking {len(short)} cells that are still open here ({shown}); it was drawn for {drawn}: "
        "judge it by that, or run again for this policy and baseline",
        [cell for cell, _, _ in short],
    )


def _effective(case: Case) -> Finding:
    if not case.policy.validity.require_effective_profile:
        return not_applicable("profile", "the policy does not require it")
    faults = profile_faults(case.run.manifest, case.run.profile)
    if not faults:
        return ok("profile", f"{case.run.manifest.profile.name} as the engine reports it")
    return failed(
        "profile",
        Reason.PROFILE_NOT_EFFECTIVE,
        f"profile {case.run.manifest.profile.name} was not what ran: {listed(faults)}; "
        "recall under other settings says nothing about it",
    )


def _tokens(case: Case) -> Finding:
    """A prompt of another length than planned was cut or changed on the way; its trial is an error that ended well."""
    faults = []
    for cell, n in case.counted.items():
        cut = sum(
            trial.outcome is Outcome.ERROR and trial.finish_reason != "error" for trial in case.run.trials(cell, n)
        )
        if cut:
            faults.append((cell, f"{cell}: {cut} of {n}"))
    if not faults:
        return ok("tokens", "every prompt has the tokens that were planned")
    return failed(
        "tokens",
        Reason.TOKENS_OFF_PLAN,
        f"prompts had another number of tokens than planned: {listed([text for _, text in faults])}; look at the "
        "window, the template and the tokenizer of what was asked",
        [cell for cell, _ in faults],
    )


def _warm(case: Case) -> Finding:
    """The arm ``warm`` is there to answer from a stored prefix; without a hit it tested nothing."""
    warm = {cell: n for cell, n in case.counted.items() if cell.arm == "warm"}
    if not warm:
        return not_applicable("warm", "no cell is of the arm")
    limit = case.policy.validity.max_error_share
    cold = []
    for cell, n in warm.items():
        missed = sum(not trial.cached_tokens for trial in case.run.trials(cell, n))
        if exceeds(missed, n, limit):
            cold.append((cell, f"{cell}: {missed} of {n}"))
    if not cold:
        return ok("warm", f"at most {limit:.2%} of any warm cell were answered without a stored prefix")
    return failed(
        "warm",
        Reason.WARM_WITHOUT_HITS,
        f"trials of the arm warm hit no stored prefix: {listed([text for _, text in cold])}; turn prefix caching on, "
        "or leave the arm out",
        [cell for cell, _ in cold],
    )


def _errors(case: Case) -> Finding:
    limit = case.policy.validity.max_error_share
    faults = []
    for cell, n in case.counted.items():
        tally = case.run.tally(cell, n)
        if exceeds(tally.unknown, n, limit):
            gaps = f" ({tally.missing} missing)" if tally.missing else ""
            faults.append((cell, f"{cell}: {tally.unknown} of {n}{gaps}"))
    if not faults:
        return ok("errors", f"at most {limit:.2%} of any cell are errors or missing")
    return failed(
        "errors",
        Reason.TOO_MANY_ERRORS,
        f"errors and missing trials are above {limit:.2%} in {len(faults)} of {len(case.courses)} cells: "
        f"{listed([text for _, text in faults])}; mend the backend and run again",
        [cell for cell, _ in faults],
    )


def _share(case: Case, outcome: Outcome, limit: float, reason: Reason) -> Finding:
    """``outcome`` above ``limit`` is a broken set-up only where the baseline shows it too; else it is a failure."""
    over, both = [], []
    for cell, n in case.counted.items():
        count = case.run.tally(cell, n).outcomes[outcome]
        if not exceeds(count, n, limit):
            continue
        over.append(f"{cell}: {count} of {n}")
        if case.baseline is not None and exceeds(case.baseline.tally(cell, n).outcomes[outcome], n, limit):
            both.append(cell)
    name = str(outcome)
    if both:
        return failed(
            name,
            reason,
            f"{outcome} answers are above {limit:.2%} here and in the baseline, so the set-up is at fault: "
            f"{listed(both)}; look at the answer budget and the template",
            both,
        )
    if over:
        return ok(
            name,
            f"above {limit:.2%} in {listed(over)}; the baseline is not, so they count as failures"
            if case.baseline is not None
            else f"above {limit:.2%} in {listed(over)}; they count as failures",
        )
    return ok(name, f"at most {limit:.2%} of any cell")
