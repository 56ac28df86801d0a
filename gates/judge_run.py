"""Judging run folders: read and verify them, judge, and keep the verdict beside the run."""

from __future__ import annotations

import json
import re

from evalgate.errors import InvalidDocumentError, InvalidRunError, MismatchError, TamperedError
from evalgate.gates.policy import Policy
from evalgate.gates.profile import Profile
from evalgate.gates.rules import judge
from evalgate.gates.verdict import PolicySource, Verdict
from evalgate.records import Manifest
from evalgate.store import RunFolder
from evalgate.versioned import parse


def gate_run(
    run: RunFolder, policy: Policy, baseline: RunFolder | None = None, source: PolicySource | None = None
) -> Verdict:
    """Verify the files of ``run`` and ``baseline``, judge, and write ``verdicts/POLICY@VERSION[-BASELINE].json``.

    Judging is deterministic: the same run, policy and baseline give the same verdict, so writing it again replaces
    nothing; a policy of the same name and version that says something else is refused. ``source`` is recorded.

    Raises InvalidRunError (empty, partial, missing or unparsable files), TamperedError (files that were changed),
    MismatchError as ``judge`` does, StorageError (the verdict cannot be written).
    """
    manifest = run.verify()
    other = None if baseline is None else baseline.verify()
    name = verdict_name(policy, other)
    _refuse_other_bars(run, name, policy)
    verdict = _judge(manifest, run, policy, baseline).model_copy(update={"policy_source": source})
    run.write_verdict(name, verdict.model_dump(mode="json"))
    return verdict


def peek(run: RunFolder, policy: Policy, baseline: RunFolder | None = None) -> Verdict:
    """Judge what a run that is drawn look by look holds so far, as if it ended here; nothing is written.

    Raises as ``gate_run`` does.
    """
    if baseline is not None:
        baseline.verify()
    return _judge(run.manifest().model_copy(update={"status": "complete"}), run, policy, baseline)


def _judge(manifest: Manifest, run: RunFolder, policy: Policy, baseline: RunFolder | None) -> Verdict:
    other = None if baseline is None else baseline.manifest()
    return judge(
        manifest,
        run.trials(),
        policy,
        None if baseline is None or other is None else (other, baseline.trials()),
        profile=asked_profile(manifest),
        baseline_profile=None if other is None else asked_profile(other),
    )


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


def _refuse_other_bars(run: RunFolder, name: str, policy: Policy) -> None:
    """Raise MismatchError where this run was judged by another document of the same name and version."""
    try:
        content = run.verdicts().get(name)
        judged_by = None if content is None else json.loads(content)["policy"]["digest"]
    except (TamperedError, ValueError, KeyError, TypeError):
        return  # judging again is the remedy for a verdict that cannot be believed
    if judged_by not in {None, policy.digest}:
        raise MismatchError(
            f"{run.path} was judged before by another policy {policy.ref} (digest {judged_by[:12]}, now "
            f"{policy.digest[:12]}); give the changed one a new version, so that both verdicts stay"
        )
