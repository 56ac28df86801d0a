"""The ledger: one line for every piece of evidence, chained by digest and signed, so that nothing can be taken back.

An entry names the digest of the entry before it, and the signature of the last one, the head, stands for all. What no
chain can show is a tail that was cut off; who remembers a head, or holds evidence, sees that too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from securesystemslib.signer import CryptoSigner, Key

from evalgate import disk
from evalgate.errors import InvalidEvidenceError, TamperedError
from evalgate.gates.evidence_envelope import Envelope, Signing, parse_json, seal
from evalgate.records import DocumentId
from evalgate.versioned import canonical_digest, canonical_json

__all__ = ["Entry", "Ledger", "Line"]

PAYLOAD_TYPE = "application/vnd.evalgate.ledger-entry+json"


class Entry(BaseModel):
    """One attempt: what was judged, on which seeds, and what was said."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    number: int = Field(ge=1)
    """1-based place in the ledger."""
    previous: str | None
    """Digest of the entry before; None in the first."""
    time: str
    run_id: str
    suite: DocumentId
    seed_set: str
    profile: DocumentId
    weights_sha256: str
    policy: DocumentId
    status: str
    evidence_sha256: str
    """Digest of the envelope of the evidence."""

    @property
    def digest(self) -> str:
        """sha256 over the canonical JSON of the entry."""
        return canonical_digest(self.model_dump(mode="json"))


class Line(BaseModel):
    """An entry with its signature (DSSE over the entry's canonical JSON), as a line of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    entry: Entry
    keyid: str
    sig: str

    @property
    def text(self) -> bytes:
        """The line, canonical, without its end."""
        return canonical_json(self.model_dump(mode="json"))

    def signing(self, keys: Sequence[Key]) -> Signing:
        """What its signature says to those who trust ``keys``."""
        return self._envelope().signing(keys)

    def _envelope(self) -> Envelope:
        payload = base64.b64encode(canonical_json(self.entry.model_dump(mode="json"))).decode()
        body = {"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": [{"keyid": self.keyid, "sig": self.sig}]}
        return Envelope.parse(json.dumps(body), "ledger entry")


class Ledger(NamedTuple):
    """The lines of a ledger that was read; `read` shows whether they are as they were written."""

    path: Path
    lines: tuple[Line, ...]

    @classmethod
    def read(cls, path: Path, keys: Sequence[Key], *, head: str | None = None, missing_ok: bool = False) -> Ledger:
        """Read a ledger and check every entry against those before it and against ``keys``.

        ``head`` is the digest of an entry that must be there. Raises InvalidEvidenceError (missing, unparsable) or
        TamperedError (an entry was removed, edited, reordered, rewritten, or not signed by ``keys``; no such head).
        """
        content = disk.read(path)
        if content is None:
            if missing_ok and head is None:
                return cls(path, ())
            raise InvalidEvidenceError(f"ledger {path} does not exist; evidence is entered with `sign --ledger`")
        ledger = cls(path, tuple(_line(path, at, text) for at, text in enumerate(content.splitlines(), 1)))
        faults = list(ledger._faults(content, keys))
        if head is not None and head not in {line.entry.digest for line in ledger.lines}:
            faults.append(f"no entry has digest {head[:12]}, the head that it had: entries at the end were cut off")
        if faults:
            more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
            raise TamperedError(f"{path}: {'; '.join(faults[:3])}{more}; put back the ledger as it was")
        return ledger

    @property
    def head(self) -> str | None:
        """Digest of the last entry; None where there is none."""
        return self.lines[-1].entry.digest if self.lines else None

    def attempts(self, suite: DocumentId, seed_set: str) -> list[str]:
        """Runs, each once, that were judged on these seeds: every one is a chance to pass by luck."""
        runs = (line.entry for line in self.lines)
        return list(dict.fromkeys(e.run_id for e in runs if (e.suite, e.seed_set) == (suite, seed_set)))

    def append(self, entry: Entry, signer: CryptoSigner) -> Ledger:
        """Sign ``entry`` and write the ledger with it at the end, whole; returns it as it is then.

        Call it only while ``hold`` is held since the ledger was read. Raises StorageError.
        """
        assert (entry.number, entry.previous) == (len(self.lines) + 1, self.head), "an entry follows the last one"
        signature = seal(canonical_json(entry.model_dump(mode="json")), PAYLOAD_TYPE, signer).signatures[0]
        longer = Ledger(self.path, (*self.lines, Line(entry=entry, keyid=signature.keyid, sig=signature.sig)))
        disk.replace(self.path, b"".join(line.text + b"\n" for line in longer.lines))
        return longer

    def _faults(self, content: bytes, keys: Sequence[Key]) -> list[str]:
        faults = []
        if content != b"".join(line.text + b"\n" for line in self.lines):
            faults.append("its lines are written otherwise than evalgate writes them")
        before: str | None = None
        for at, line in enumerate(self.lines, 1):
            if line.entry.number != at:
                faults.append(f"line {at} has entry {line.entry.number}: entries were removed, added or reordered")
            if line.entry.previous != before:
                faults.append(f"entry {line.entry.number} follows another entry than the one before it")
            signing = line.signing(keys)
            if signing is Signing.OTHER_SIGNER:
                faults.append(f"entry {line.entry.number} is signed by {line.keyid[:12]}, which is not trusted")
            elif signing is Signing.BROKEN:
                faults.append(f"entry {line.entry.number} was changed after it was signed")
            before = line.entry.digest
        return faults


def lock_of(path: Path) -> Path:
    """The lock to hold from reading a ledger to writing it."""
    return path.with_name(f".{path.name}.lock")


def _line(path: Path, at: int, text: bytes) -> Line:
    where = f"{path}, line {at}"
    try:
        return Line.model_validate(parse_json(text, where))
    except ValidationError as error:
        fault = error.errors()[0]
        told = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise InvalidEvidenceError(f"{where}: no entry of a ledger ({told}); put back the ledger as it was") from error
