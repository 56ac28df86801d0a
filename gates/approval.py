"""The evidence run of an approval: what a weaker document is approved on."""

from __future__ import annotations

import json

from evalgate.errors import RefusedError
from evalgate.gates.policy import Policy
from evalgate.gates.profile import Profile
from evalgate.gates.stored import stored_verdicts
from evalgate.gates.verdict import Status, Verdict
from evalgate.release import Standing
from evalgate.store import RunFolder
from evalgate.versioned import Document, Evidence, canonical_digest

__all__ = ["evidence_run"]


def evidence_run(run: RunFolder, found: Standing[Document]) -> Evidence:
    """Return the latest verdict of ``run`` that speaks of the weaker document, as evidence for its approval.

    A policy needs a verdict under the version that it loosens, a profile a run with exactly its settings, a suite a
    run of the version that it makes easier. Whether PASS or BLOCK is for the approver to weigh, and is recorded.
    Raises RefusedError (no such verdict) and as ``RunFolder.verify`` and ``stored_verdicts`` do.
    """
    run.verify()
    names = list(run.verdicts())
    fitting = [
        (name, verdict)
        for name, verdict in zip(names, stored_verdicts(run), strict=True)
        if verdict.status not in {Status.ERROR, Status.TAMPERED} and _speaks_of(run, verdict, found)
    ]
    if not fitting:
        raise RefusedError(f"run {run.path} is no evidence for {found.document.ref}: expected {_expected(found)}")
    name, verdict = fitting[-1]
    body = verdict.model_dump(mode="json", exclude={"flips"})
    return Evidence(
        run=verdict.run.run_id,
        verdict=name,
        status=str(verdict.status),
        digest=canonical_digest(json.loads(json.dumps(body))),
        changes=found.weakened,
    )


def _speaks_of(run: RunFolder, verdict: Verdict, found: Standing[Document]) -> bool:
    document, before = found.document, found.before
    if isinstance(document, Profile):
        from evalgate.gates.judge_run import asked_profile

        return asked_profile(run.manifest()).sections == document.sections
    judged = verdict.policy if isinstance(document, Policy) else verdict.run.suite
    return before is not None and (judged.name, judged.version, judged.digest) == (
        before.name,
        before.version,
        before.digest,
    )


def _expected(found: Standing[Document]) -> str:
    before = "the version before" if found.before is None else found.before.ref
    if isinstance(found.document, Profile):
        return f"a judged run (no ERROR) whose profile has exactly the settings of {found.document.ref}"
    if isinstance(found.document, Policy):
        return f"a verdict (no ERROR) under {before}: `evalgate gate RUN --policy {before}`"
    return f"a judged run (no ERROR) of suite {before}"
