"""Evidence: a signed statement of one verdict with its signed summary, in one file of two lines.

The file is an in-toto attestation bundle: one DSSE envelope a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from securesystemslib.signer import CryptoSigner, Key

from evalgate import disk
from evalgate.errors import InvalidEvidenceError, TamperedError
from evalgate.gates.evidence_envelope import Envelope, parse_json, seal
from evalgate.gates.evidence_ledger import Entry, Ledger, lock_of
from evalgate.gates.evidence_statement import PAYLOAD_TYPE, PREDICATE, STATEMENT, SUMMARY, Statement, statement, summary
from evalgate.gates.verdict import Verdict
from evalgate.records import Manifest
from evalgate.store import RunFolder
from evalgate.versioned import canonical_json

__all__ = ["Evidence", "Signed", "sign"]


class Signed(NamedTuple):
    """What was signed and, with a ledger, where it was entered."""

    evidence: Evidence
    status: str
    entry: Entry | None
    attempts: int | None
    """Runs on the same seeds that the ledger knows, this one included."""


class Evidence(NamedTuple):
    """The two envelopes of a file, unread."""

    statement: Envelope
    summary: Envelope

    @classmethod
    def read(cls, path: Path) -> Evidence:
        """Read a file. Raises InvalidEvidenceError (missing, no envelopes, not one statement and one summary)."""
        content = disk.read(path)
        if content is None:
            raise InvalidEvidenceError(f"evidence {path} does not exist; sign it with `evalgate evidence sign`")
        lines = content.splitlines()
        if len(lines) != len(cls._fields):
            raise InvalidEvidenceError(
                f"{path}: found {len(lines)} lines, expected the statement and the summary; fetch it again"
            )
        return cls(*(Envelope.parse(line, f"{path}, line {at}") for at, line in enumerate(lines, 1)))

    def write(self, path: Path) -> None:
        """Write the file whole. Raises StorageError."""
        disk.replace(path, self.statement.line + self.summary.line)

    def stated(self) -> Statement:
        """What the statement says. Raises InvalidEvidenceError; no signature is looked at."""
        body = parse_json(self.statement.content, "statement")
        try:
            return Statement.model_validate(body)
        except ValidationError as error:
            fault = error.errors()[0]
            told = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            kind = body.get("predicateType") if isinstance(body, dict) else None
            raise InvalidEvidenceError(
                f"the statement, of predicate type {kind!r}, is not one of {PREDICATE} ({told}); "
                "is it the evidence of another tool?"
            ) from error

    def kinds(self) -> list[str]:
        """Payload type, statement type and predicate type of both. Raises InvalidEvidenceError: no JSON."""
        found = []
        for envelope in self:
            body = _object(parse_json(envelope.content, "attestation"))
            found += [envelope.payload_type, str(body.get("_type")), str(body.get("predicateType"))]
        return found

    def summary_fault(self) -> str | None:
        """In which field the summary is not that of the statement, or None.

        Raises InvalidEvidenceError: no JSON. Call it only where ``stated`` did not raise.
        """
        found = parse_json(self.summary.content, "summary")
        expected = summary(parse_json(self.statement.content, "statement"), self.statement.digest)
        # Another version may check than the one that signed.
        version = _object(_object(_object(found).get("predicate")).get("verifier")).get("version")
        expected["predicate"]["verifier"]["version"] = version
        return next(iter(_paths(expected, found)), None)


KINDS = [PAYLOAD_TYPE, STATEMENT, PREDICATE, PAYLOAD_TYPE, STATEMENT, SUMMARY]
"""What ``Evidence.kinds`` says of evidence."""


def sign(run: RunFolder, verdict: Verdict, signer: CryptoSigner, *, signed: str, ledger: Path | None = None) -> Signed:
    """Sign what ``verdict`` says of ``run`` at ``signed`` (RFC 3339), and enter it in ``ledger``.

    Raises InvalidRunError or TamperedError (the run, the ledger), MismatchError (a verdict of another run).
    """
    manifest = run.verify()
    _same(manifest, verdict)
    if ledger is None:
        evidence, _ = _sealed(run, manifest, verdict, signer, signed, None)
        return Signed(evidence, str(verdict.status), None, None)
    disk.make_folder(ledger.parent)
    with disk.hold(lock_of(ledger)):
        book = Ledger.read(ledger, [signer.public_key], missing_ok=True)
        others = [name for name in book.attempts(manifest.suite, manifest.seed_set) if name != manifest.run_id]
        before: dict[str, object] = {"entries": len(book.lines), "head": book.head, "attempt": len(others) + 1}
        evidence, status = _sealed(run, manifest, verdict, signer, signed, before)
        entry = Entry(
            number=len(book.lines) + 1,
            previous=book.head,
            time=signed,
            run_id=manifest.run_id,
            suite=manifest.suite,
            seed_set=manifest.seed_set,
            profile=manifest.profile,
            weights_sha256=manifest.model.weights_sha256,
            policy=verdict.policy,
            status=status,
            evidence_sha256=evidence.statement.digest,
        )
        book.append(entry, signer)
    return Signed(evidence, status, entry, len(others) + 1)


def ledger_fault(evidence: Evidence, path: Path, keys: Sequence[Key], head: str | None) -> str | None:
    """Why ``evidence`` does not stand in the ledger as it was signed, or None.

    Raises as ``Ledger.read``.
    """
    before = evidence.stated().predicate.ledger
    book = Ledger.read(path, keys, head=head)
    if before is None:
        return "the evidence was signed without a ledger"
    if len(book.lines) <= before.entries:
        return f"it has {len(book.lines)} entries, and the evidence is entry {before.entries + 1}: its end was cut off"
    entry = book.lines[before.entries].entry
    if (entry.evidence_sha256, entry.previous) != (evidence.statement.digest, before.head):
        return f"its entry {entry.number} is of other evidence"
    return None


def _sealed(
    run: RunFolder,
    manifest: Manifest,
    verdict: Verdict,
    signer: CryptoSigner,
    signed: str,
    before: dict[str, object] | None,
) -> tuple[Evidence, str]:
    body = statement(manifest, verdict, run.trials(), run.counters(), signed=signed, ledger=before)
    first = seal(canonical_json(body), PAYLOAD_TYPE, signer)
    second = seal(canonical_json(summary(body, first.digest)), PAYLOAD_TYPE, signer)
    return Evidence(first, second), str(verdict.status)


def _same(manifest: Manifest, verdict: Verdict) -> None:
    """Raise TamperedError where a verdict speaks of other things than the run that it lies beside."""
    ours = (manifest.run_id, manifest.profile, manifest.model.weights_sha256, manifest.model.tokenizer_sha256)
    ref = verdict.run
    if (ref.run_id, ref.profile, ref.weights_sha256, ref.tokenizer_sha256) != ours:
        raise TamperedError(
            f"the verdict is of run {ref.run_id}, weights {ref.weights_sha256[:12]}, and the run is {manifest.run_id}, "
            f"weights {manifest.model.weights_sha256[:12]}; judge it again with `evalgate gate`"
        )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _paths(expected: Any, found: Any, at: str = "") -> list[str]:
    """Dotted names of the values in which two JSON values differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        names = sorted(expected.keys() | found.keys())
        return [path for name in names for path in _paths(expected.get(name), found.get(name), f"{at}.{name}")]
    return [] if expected == found else [at.removeprefix(".") or "all of it"]
