"""Releasing a version of a document: locked once, and never weaker than the one before without an approval.

What weakens a document is for its kind to say: a lower bar of a policy, a harsher profile, an easier suite.
A weaker version is locked only with a reason, an approver and the evidence run, bound to exactly these changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

from evalgate import disk
from evalgate.errors import InvalidDocumentError, RefusedError
from evalgate.versioned import Document, Evidence, Library, by_number, parse, parse_yaml, read_lock, with_field

__all__ = ["Change", "Direction", "Kind", "Standing", "approved_text", "is_locked", "lock", "standing"]

Direction = Literal["weaker", "stronger", "other"]
D = TypeVar("D", bound=Document)


class Change(NamedTuple):
    """One difference between two versions."""

    direction: Direction
    words: str


class Kind(NamedTuple, Generic[D]):
    """A kind of document: how it is read, how two of it differ, and what its differences are called."""

    library: Library
    model: type[D]
    changes: Callable[[D, D], list[Change]]
    weaker: str
    """``looser``, ``harsher`` or ``easier``."""
    stronger: str

    def load(self, ref: str) -> D:
        """Load by name, ``name@version`` or file; raises as ``Library.load`` does."""
        return self.library.load(self.model, ref)


class Standing(NamedTuple, Generic[D]):
    """A version beside the one that it follows."""

    document: D
    before: D | None
    """The locked version that it is compared with; None for the first release."""
    weakened: list[str]
    """In words, what is weaker than before."""


def standing(kind: Kind[D], path: Path) -> Standing[D]:
    """Read ``NAME/VERSION.yaml`` and what it weakens against the locked version before it.

    The version before is the highest locked one below; where there is none below, the lowest locked one.
    Raises RefusedError (a file that is not in its place) and as ``Library.load`` does.
    """
    document = kind.load(str(path))
    if (path.stem, path.resolve().parent.name) != (document.version, document.name) or path.suffix != ".yaml":
        raise RefusedError(
            f"{path} is {document.ref}; versions are locked beside each other: move it to "
            f"{document.name}/{document.version}.yaml, next to the versions before it"
        )
    before = _before(kind, path, document)
    changes = [] if before is None else kind.changes(before, document)
    return Standing(document, before, [change.words for change in changes if change.direction == "weaker"])


def _before(kind: Kind[D], path: Path, document: D) -> D | None:
    locked = [version for version in _locked(path) if version != document.version]
    below = [version for version in locked if by_number(version) < by_number(document.version)]
    if not locked:
        return None
    chosen = max(below, key=by_number) if below else min(locked, key=by_number)
    file = path.with_name(f"{chosen}.yaml")
    if not file.is_file():
        raise RefusedError(f"{file} is locked and not there, so nothing can be compared with it; put it back")
    return kind.load(str(file))


def _locked(path: Path) -> dict[str, str]:
    file = path.with_name("lock.json")
    return read_lock(file) if file.is_file() else {}


def is_locked(path: Path, document: Document) -> bool:
    """Whether the version is in the lock file beside ``path``."""
    return document.version in _locked(path)


def lock(kind: Kind[D], path: Path) -> Standing[D]:
    """Write the digest of ``NAME/VERSION.yaml`` into ``lock.json`` beside it; a locked version stays as it is.

    Raises RefusedError (weaker than the version before, and not approved as it stands), TamperedError (changed after
    it was locked) and as ``standing`` does.
    """
    found = standing(kind, path)
    locked = _locked(path)
    if found.document.version not in locked:
        _refuse_unapproved(kind, path, found)
        locked[found.document.version] = found.document.digest
        text = json.dumps(dict(sorted(locked.items(), key=lambda item: by_number(item[0]))), indent=2) + "\n"
        disk.replace(path.with_name("lock.json"), text.encode())
    return found


def _refuse_unapproved(kind: Kind[D], path: Path, found: Standing[D]) -> None:
    if found.before is None or not found.weakened:
        return
    document = found.document
    lacking = [field for field in ("reason", "approver") if not (getattr(document, field) or "").strip()]
    if document.evidence is None:
        lacking.append("evidence")
    elif document.evidence.changes != found.weakened:
        lacking.append("evidence of these changes (it was approved for others)")
    if lacking:
        name = kind.library.kind
        raise RefusedError(
            f"{name} {document.ref} is {kind.weaker} than {found.before.ref}: {'; '.join(found.weakened)}. It lacks "
            f"{', '.join(lacking)}: `evalgate {name} approve {path} --reason WHY --approver WHO --evidence RUN` "
            "writes them and locks it"
        )


def approved_text(kind: Kind[D], text: str, *, reason: str, approver: str, evidence: Evidence) -> str:
    """Return the YAML ``text`` with the approval written into it; comments and everything else stay.

    Raises InvalidDocumentError: the text cannot take the fields, because it is no block of ``key: value`` lines.
    """
    fields = {"reason": reason, "approver": approver, "evidence": evidence.model_dump(mode="json")}
    stated = parse_yaml(text, "document")
    for name, value in fields.items():
        text = with_field(text, name, json.dumps(value, ensure_ascii=False))
    if parse_yaml(text, "approved document") != stated | fields:
        raise InvalidDocumentError("the approval does not fit into this YAML; write it as lines of `field: value`")
    parse(kind.model, stated | fields, "approved document")
    return text
