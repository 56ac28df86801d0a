"""Judging run folders: read and verify them, judge, and keep the verdict beside the run."""

from __future__ import annotations

import re

from evalgate.errors import UnknownNameError
from evalgate.gates.policy import Policy
from evalgate.gates.profile import Profile, load_profile
from evalgate.gates.rules import judge
from evalgate.gates.verdict import Verdict
from evalgate.records import Manifest
from evalgate.store import RunFolder


def gate_run(
    run: RunFolder, policy: Policy, baseline: RunFolder | None = None, *, profile: Profile | None = None
) -> Verdict:
    """Verify the files of ``run`` and ``baseline``, judge, and write ``verdicts/POLICY@VERSION[-BASELINE].json``.

    ``profile`` is the one that the run was asked for, where it does not come with evalgate; else it is looked up by
    the name and version in the manifest. Judging is deterministic: the same run, policy and baseline give the same
    verdict, so writing it again replaces nothing.

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
        profile=profile or asked_profile(manifest),
        baseline_profile=None if other is None else _same_profile(other, profile) or asked_profile(other),
    )
    run.write_verdict(verdict_name(policy, other), verdict.model_dump(mode="json"))
    return verdict


def asked_profile(manifest: Manifest) -> Profile | None:
    """Load the profile that the manifest names, or None where evalgate has none of that name and version.

    Raises TamperedError where it was changed after its release.
    """
    try:
        return load_profile(f"{manifest.profile.name}@{manifest.profile.version}")
    except UnknownNameError:
        return None


def verdict_name(policy: Policy, baseline: Manifest | None) -> str:
    """Name of a verdict among those of one run: ``POLICY@VERSION[-BASELINE]``, the baseline by its run id."""
    suffix = "" if baseline is None else "-" + re.sub(r"[^\w.+-]", "_", baseline.run_id)
    return f"{policy.ref}{suffix}"


def _same_profile(manifest: Manifest, profile: Profile | None) -> Profile | None:
    return profile if profile is not None and profile.id == manifest.profile else None
