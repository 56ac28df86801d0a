"""Verdicts that lie beside a run, found again."""

from __future__ import annotations

from pydantic import ValidationError

from evalgate.errors import InvalidRunError, RefusedError
from evalgate.gates.verdict import Verdict
from evalgate.store import RunFolder


def stored_verdicts(run: RunFolder) -> list[Verdict]:
    """Return every verdict beside ``run``, the latest last.

    Raises InvalidRunError (unparsable, or of another run) or TamperedError (changed after it was written).
    """
    return [_parse(run, name, content) for name, content in run.verdicts().items()]


def stored_verdict(run: RunFolder, policy: str | None = None, baseline: RunFolder | None = None) -> Verdict | None:
    """Return the latest verdict of ``run``, or None where it was never judged.

    ``policy`` (``name`` or ``name@version``) and ``baseline`` leave only those that were given under them.
    Raises RefusedError where verdicts, or a policy to look for, are there and none fits; else as ``stored_verdicts``.
    """
    found = stored_verdicts(run)
    against = None if baseline is None else baseline.manifest().run_id
    fitting = [verdict for verdict in found if _under(verdict, policy) and against in {None, _baseline(verdict)}]
    if fitting:
        return fitting[-1]
    if not found and policy is None:
        return None
    command = f"evalgate gate {run.path} --policy {policy or 'POLICY'}"
    command += "" if baseline is None else f" --baseline {baseline.path}"
    raise RefusedError(f"{run.path} has no verdict under that policy and baseline; judge it first with `{command}`")


def _under(verdict: Verdict, policy: str | None) -> bool:
    return policy in {None, verdict.policy.name, f"{verdict.policy.name}@{verdict.policy.version}"}


def _baseline(verdict: Verdict) -> str | None:
    return None if verdict.baseline_run is None else verdict.baseline_run.run_id


def _parse(run: RunFolder, name: str, content: bytes) -> Verdict:
    where = run.path / "verdicts" / f"{name}.json"
    try:
        verdict = Verdict.model_validate_json(content)
    except ValidationError as error:
        fault = error.errors()[0]["msg"]
        raise InvalidRunError(f"{where}: not a verdict of this version ({fault}); judge again") from error
    if verdict.run.run_id != run.manifest().run_id:
        raise InvalidRunError(f"{where} is of run {verdict.run.run_id}, not of this one; judge again")
    return verdict
