"""Whether a baseline is there where one is needed, sound, and of the same questions as the run."""

from __future__ import annotations

from collections.abc import Mapping

from evalgate.gates.effective import profile_faults
from evalgate.gates.finding import Finding, failed, listed, not_applicable, ok
from evalgate.gates.policy import Policy
from evalgate.gates.run_record import RunRecord
from evalgate.gates.verdict import Reason
from evalgate.records import Cell, Manifest
from evalgate.stats import exact

SCORER = "scorer"
"""Key of ``Manifest.versions`` that holds the version of the scoring rule."""


def baseline_check(policy: Policy, counted: Mapping[Cell, int], baseline: RunRecord | None) -> Finding:
    """Check that the baseline is there if the policy requires it, and would itself be valid."""
    if baseline is None:
        if policy.baseline.use != "required":
            return not_applicable("baseline", f"none given; the policy says {policy.baseline.use}")
        detail = f"policy {policy.ref} requires a baseline and none was given; pass --baseline RUN"
        return failed("baseline", Reason.BASELINE_REQUIRED, detail)
    faults = _faults(baseline, policy, counted)
    if faults:
        return failed(
            "baseline",
            Reason.BASELINE_INVALID,
            f"baseline {baseline.manifest.run_id} is itself not valid: {listed(faults)}; record it anew",
        )
    return ok("baseline", f"{baseline.manifest.run_id}, profile {baseline.manifest.profile.name}")


def _faults(baseline: RunRecord, policy: Policy, counted: Mapping[Cell, int]) -> list[str]:
    faults = []
    if baseline.manifest.status != "complete":
        faults.append(f"its status is {baseline.manifest.status}")
    if baseline.duplicates:
        faults.append(f"it holds trials twice ({listed(baseline.duplicates)})")
    if baseline.unplanned:
        faults.append(f"it holds trials that its plan does not name ({listed([t.cell for t in baseline.unplanned])})")
    limit = policy.validity.max_error_share
    for cell, n in counted.items():
        errors = baseline.tally(cell, n).errors
        if errors > exact(limit) * n:
            faults.append(f"{cell}: {errors} of {n} trials are errors, limit {limit:.0%}")
    if policy.validity.require_effective_profile:
        faults += profile_faults(baseline.manifest, baseline.profile)
    return faults


def comparable_check(run: RunRecord, counted: Mapping[Cell, int], baseline: RunRecord | None) -> Finding:
    """Check that the baseline answered the same prompts, scored by the same rule."""
    if baseline is None:
        return not_applicable("comparable", "no baseline")
    faults = _identity_faults(run.manifest, baseline.manifest) or _prompt_faults(run, counted, baseline)
    if faults:
        return failed(
            "comparable",
            Reason.BASELINE_NOT_COMPARABLE,
            f"baseline {baseline.manifest.run_id} cannot be compared with: {listed(faults)}; "
            "record a baseline of the same suite, seed set and tokenizer, with at least as many seeds",
        )
    return ok("comparable", "same suite, seed set, tokenizer and scorer; every counted prompt is the same")


def _identity_faults(own: Manifest, other: Manifest) -> list[str]:
    pairs = {
        "suite": (f"{own.suite.name}@{own.suite.version}", f"{other.suite.name}@{other.suite.version}"),
        "suite digest": (own.suite.digest[:12], other.suite.digest[:12]),
        "tokenizer": (own.model.tokenizer_sha256[:12], other.model.tokenizer_sha256[:12]),
        "seed set": (own.seed_set, other.seed_set),
        "generator version": (own.generator_version, other.generator_version),
        "scorer version": (own.versions.get(SCORER), other.versions.get(SCORER)),
    }
    return [f"its {what} is {theirs}, the run's is {ours}" for what, (ours, theirs) in pairs.items() if ours != theirs]


def _prompt_faults(run: RunRecord, counted: Mapping[Cell, int], baseline: RunRecord) -> list[str]:
    faults = []
    for cell, n in counted.items():
        absent = changed = 0
        for own, other in run.pairs(baseline, cell, n):
            if other is None:
                absent += 1
            elif own is not None and own.prompt_sha256 != other.prompt_sha256:
                changed += 1
        if absent:
            faults.append(f"{cell}: it lacks {absent} of {n} trials")
        if changed:
            faults.append(f"{cell}: {changed} of {n} prompts differ")
    return faults
