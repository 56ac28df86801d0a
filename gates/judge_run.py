"""Judging run folders: read and verify them, judge, and keep the verdict beside the run."""

from __future__ import annotations

import re

from evalgate.errors import InvalidDocumentError, InvalidRunError, TamperedError
from evalgate.gates.policy import Policy
from evalgate.gates.profile import Profile
from evalgate.gates.rules import judge
from evalgate.gates.verdict import Verdict
from evalgate.records import Manifest
from evalgate.store import RunFolder
from evalgate.versioned import parse


def gate_run(run: RunFolder, policy: Policy, baseline: RunFolder | None = None) -> Verdict:
    """Verify the files of ``run`` and ``baseline``, judge, and write ``verdicts/POLICY@VERSION[-BASELINE].json``.

    Judging is deterministic: the same run, policy and baseline give the same verdict, so writing it again replaces
    nothing.

    Raises InvalidRunError (empty, partial, missing or unparsable files), TamperedError (files that were changed),
    MismatchError and UnsupportedError as ``judge`` does, StorageError (the verdict cannot be written).
    """
    manifest = run.verify()
    other = None if baseline is None else baseline.verify()
    verdict = judge(
        manifest,
        run.trials(),
        policy,
        None if baseline is None or other is None else (other, baseline.trials()),
        profile=asked_profile(manifest),
        baseline_profile=None if other is None else asked_profile(other),
    )
    run.write_verdict(verdict_name(policy, other), verdict.model_dump(mode="json"))
    return verdict


def asked_profile(manifest: Manifest) -> Profile:
    """Return the profile that the run was asked for, as the manifest holds it.

    Raises InvalidRunError (not a profile of this version) or TamperedError (its digest is not the recorded one).
    """
    try:
        profile = parse(Profile, dict(manifest.profile_body), f"profile of run {manifest.run_id}")
    except InvalidDocumentError as error:
        raise InvalidRunError(f"{error}; run it again") from error
    if profile.id != manifest.profile:
        raise TamperedError(
            f"the profile of run {manifest.run_id} is {profile.ref} ({profile.digest[:12]}), recorded as "
            f"{manifest.profile.name}@{manifest.profile.version} ({manifest.profile.digest[:12]}); run it again"
        )
    return profile


def verdict_name(policy: Policy, baseline: Manifest | None) -> str:
    """Name of a verdict among those of one run: ``POLICY@VERSION[-BASELINE]``, the baseline by its run id."""
    suffix = "" if baseline is None else "-" + re.sub(r"[^\w.+-]", "_", baseline.run_id)
    return f"{policy.ref}{suffix}"
