"""Checking evidence before something is deployed on it: every condition by itself, each failure with its next step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from securesystemslib.signer import Key

from evalgate.errors import EvalgateError, ExitCode, InvalidEvidenceError, RefusedError
from evalgate.gates.evidence import KINDS, Evidence, ledger_fault
from evalgate.gates.evidence_envelope import Signing
from evalgate.gates.evidence_statement import Statement
from evalgate.gates.verdict import Status

__all__ = ["Demands", "Finding", "Wanted", "check_evidence", "exit_code", "parse_digest", "parse_subject"]

CLOCKS = timedelta(minutes=5)
"""How far the clocks of two machines may differ."""

WORST_FIRST = (ExitCode.TAMPERED, ExitCode.ERROR, ExitCode.REFUSED, ExitCode.BLOCK, ExitCode.INCONCLUSIVE)


class Wanted(NamedTuple):
    """A digest that must be among the subjects, under any name or under one."""

    name: str | None
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What the evidence must show."""

    signers: Sequence[Key]
    """Keys that are trusted; one of them must have signed."""
    now: datetime
    subjects: Sequence[Wanted] = ()
    policy_digest: str | None = None
    max_age: timedelta | None = None
    ledger: Path | None = None
    head: str | None = None


class Finding(NamedTuple):
    """One condition: what was found, and what to do where it does not hold."""

    check: str
    status: Literal["ok", "failed", "not-asked"]
    found: str
    expected: str = ""
    advice: str = ""
    code: ExitCode = ExitCode.PASS


def check_evidence(evidence: Evidence, demands: Demands) -> list[Finding]:
    """Check everything, signatures first; what a broken signature covers is read all the same, and believed never."""
    findings = [_signature(evidence, demands)]
    try:
        findings.append(_kind(evidence))
        stated = evidence.stated()
        findings.append(_summary(evidence))
    except InvalidEvidenceError as error:
        if any(finding.check == "predicate" and finding.status == "failed" for finding in findings):
            return findings  # another kind of statement says nothing that could be checked
        advice = "fetch the file again, or sign anew"
        return [*findings, _failed("content", str(error), "a statement and its summary", advice, ExitCode.ERROR)]
    return [
        *findings,
        *_subjects(stated, demands),
        _policy(stated, demands),
        _age(stated, demands),
        _ledger(evidence, demands),
        _result(stated),
    ]


def exit_code(findings: Sequence[Finding]) -> ExitCode:
    """The code of the worst finding: what cannot be believed or is of something else comes before what it says."""
    codes = {finding.code for finding in findings if finding.status == "failed"}
    return next((code for code in WORST_FIRST if code in codes), ExitCode.PASS)


def parse_digest(option: str, text: str) -> str:
    """A sha256 in hex, ``sha256:`` before it or not. Raises RefusedError, which names ``option``."""
    digest = text.removeprefix("sha256:").lower()
    if re.fullmatch(r"[0-9a-f]{64}", digest) is None:
        raise RefusedError(f"{option} {text!r}: expected a whole sha256, 64 hex digits")
    return digest


def parse_subject(text: str) -> Wanted:
    """``sha256`` or ``NAME=sha256``. Raises RefusedError."""
    name, named, digest = text.rpartition("=")
    return Wanted(name if named else None, parse_digest("--subject", digest))


def _signature(evidence: Evidence, demands: Demands) -> Finding:
    said = [envelope.signing(demands.signers) for envelope in evidence]
    trusted = ", ".join(key.keyid[:12] for key in demands.signers)
    named = ", ".join(dict.fromkeys(name[:12] for envelope in evidence for name in envelope.key_ids))
    if Signing.BROKEN in said:
        return _failed(
            "signature",
            f"a signature that names {named} and does not fit what it covers",
            f"a signature by {trusted}",
            "the file was changed after it was signed: fetch it again, and find out who changed it",
            ExitCode.TAMPERED,
        )
    if Signing.OTHER_SIGNER in said:
        return _failed(
            "signer",
            f"signed by {named}",
            f"signed by {trusted}",
            "give the signer's own public key with --signer, if that signer is to be trusted",
            ExitCode.REFUSED,
        )
    return Finding("signature", "ok", f"signed by {named}, which is trusted")


def _kind(evidence: Evidence) -> Finding:
    found = evidence.kinds()
    if found == KINDS:
        return Finding("predicate", "ok", found[2])
    expected, other = next((ours, theirs) for ours, theirs in zip(KINDS, found, strict=True) if ours != theirs)
    advice = "give evidence that `evalgate evidence sign` wrote"
    return _failed("predicate", other, expected, advice, ExitCode.REFUSED)


def _summary(evidence: Evidence) -> Finding:
    fault = evidence.summary_fault()
    if fault is None:
        return Finding("summary", "ok", "says what the statement says")
    advice = "the two are not of one signing: fetch both again, or sign anew"
    return _failed("summary", f"another {fault} than the statement's", "the same", advice, ExitCode.TAMPERED)


def _subjects(stated: Statement, demands: Demands) -> list[Finding]:
    has = ", ".join(f"{subject.name} {subject.sha256[:12]}" for subject in stated.subject)
    if not demands.subjects:
        return [Finding("subject", "not-asked", has, "", "name what will be deployed with --subject")]
    findings = []
    for name, digest in demands.subjects:
        fits = any(subject.sha256 == digest and name in {None, subject.name} for subject in stated.subject)
        what = f"{name or 'any'} {digest[:12]}"
        advice = "what is deployed is not what was judged: run and judge it, or deploy what was"
        findings.append(
            Finding("subject", "ok", what) if fits else _failed("subject", has, what, advice, ExitCode.REFUSED)
        )
    return findings


def _policy(stated: Statement, demands: Demands) -> Finding:
    policy = stated.predicate.verdict.policy
    found = f"{policy.name}@{policy.version} {policy.digest[:12]}"
    if demands.policy_digest is None:
        return Finding("policy", "not-asked", found, "", "name the policy that must hold with --policy")
    if policy.digest == demands.policy_digest:
        return Finding("policy", "ok", found)
    advice = "judge the run under the policy that must hold, and sign that verdict"
    return _failed("policy", found, demands.policy_digest[:12], advice, ExitCode.REFUSED)


def _age(stated: Statement, demands: Demands) -> Finding:
    ran = stated.predicate.run
    # Signing an old run again makes it no younger.
    moments = {"run": _time(ran.finished or ran.started), "signature": _time(stated.predicate.signed)}
    for what, moment in moments.items():
        if moment is None or moment > demands.now + CLOCKS:
            found = "no time" if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC, which is to come"
            advice = "set the clock of the machine that signs, and sign again"
            return _failed("age", f"{what}: {found}", "a time that has been", advice, ExitCode.REFUSED)
    measured = moments["run"]
    assert measured is not None, "the loop returns where it is"
    age = demands.now - measured
    found = f"{age / timedelta(days=1):.1f} days since the run"
    if demands.max_age is None:
        return Finding("age", "not-asked", found, "", "say how old it may be with --max-age")
    if age <= demands.max_age:
        return Finding("age", "ok", found)
    limit = f"at most {demands.max_age / timedelta(days=1):.1f} days"
    return _failed("age", found, limit, "run, judge and sign again", ExitCode.REFUSED)


def _ledger(evidence: Evidence, demands: Demands) -> Finding:
    before = evidence.stated().predicate.ledger
    told = "" if before is None else f"entry {before.entries + 1}, attempt {before.attempt} on its seed set"
    if demands.ledger is None:
        return Finding("ledger", "not-asked", told or "none", "", "name the ledger with --ledger")
    advice = "put back the ledger as it was, or sign again with --ledger"
    try:
        fault = ledger_fault(evidence, demands.ledger, demands.signers, demands.head)
    except EvalgateError as error:
        return _failed("ledger", str(error), "an unbroken chain", advice, error.exit_code)
    if fault is not None:
        return _failed("ledger", fault, "this evidence in its place", advice, ExitCode.TAMPERED)
    return Finding("ledger", "ok", told)


def _result(stated: Statement) -> Finding:
    verdict = stated.predicate.verdict
    told = verdict.reason if verdict.reason.startswith(verdict.status) else f"{verdict.status}: {verdict.reason}"
    if verdict.status is Status.PASS:
        return Finding("result", "ok", told)
    # A smoke policy may let a job go on that saw nothing; evidence of it is still none of a PASS.
    code = ExitCode[verdict.status]
    if verdict.status is Status.INCONCLUSIVE and verdict.on_inconclusive == "block":
        code = ExitCode.BLOCK
    return _failed("result", told, "PASS", "do not deploy this", code)


def _time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _failed(check: str, found: str, expected: str, advice: str, code: ExitCode) -> Finding:
    return Finding(check, "failed", found, expected, advice, code)
