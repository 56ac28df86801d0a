"""Versioned documents: suites, profiles and policies are one kind of thing.

A document is ``NAME/VERSION.yaml`` in a library folder.
Released versions are immutable: ``NAME/lock.json`` holds the digest of each, and an edit is TAMPERED.
A document is found by ``name`` (newest version), ``name@1.0.0`` or the path of a file.
This module knows nothing of what a document says; the schema is the caller's pydantic model.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import rfc8785
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evalgate.errors import InvalidDocumentError, TamperedError, UnknownNameError, nearest

VERSION_PATTERN = r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$"
NAME_PATTERN = r"^[a-z0-9][a-z0-9.-]*$"


class Evidence(BaseModel):
    """The run on which a weaker version was approved, and what was approved."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    run: str = Field(min_length=1)
    """Its run id."""
    verdict: str = Field(min_length=1)
    """Which verdict of it: ``POLICY@VERSION[-BASELINE]``."""
    status: str = Field(min_length=1)
    """What that verdict says."""
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    """sha256 over the RFC 8785 canonical JSON of the verdict without its flips, so it outlives the removal of text."""
    changes: list[str] = Field(min_length=1)
    """In words, what is weaker than in the version before."""


class Document(BaseModel):
    """Fields that every versioned document has; subclasses add their own."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_version: int = Field(ge=1, le=1)
    name: str = Field(pattern=NAME_PATTERN)
    version: str = Field(pattern=VERSION_PATTERN)
    owner: str | None = None
    reason: str | None = None
    approver: str | None = None
    evidence: Evidence | None = None
    """Stated only by a version that is weaker than the one before it."""

    @property
    def ref(self) -> str:
        """``name@version``"""
        return f"{self.name}@{self.version}"

    @property
    def digest(self) -> str:
        """sha256 over the RFC 8785 canonical JSON of the fields that the document states."""
        return canonical_digest(self.model_dump(mode="json", by_alias=True, exclude_unset=True))


D = TypeVar("D", bound=Document)


class _StrictLoader(yaml.SafeLoader):
    """Safe loader that refuses duplicate keys."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise InvalidDocumentError(f"line {line}: key {key!r} is not text; quote it if it is meant")
        if key in seen:
            raise InvalidDocumentError(f"line {line}: key {key!r} is given twice; keep one of them")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def canonical_digest(value: object) -> str:
    """sha256 (hex) over RFC 8785 canonical JSON.

    Raises InvalidDocumentError: NaN, infinity, an integer beyond 2**53 - 1, or anything else that JSON cannot say.
    """
    return hashlib.sha256(canonical_json(value)).hexdigest()


def canonical_json(value: object) -> bytes:
    """RFC 8785 canonical JSON; raises as ``canonical_digest`` does."""
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]  # any JSON value; rfc8785 checks it
    except rfc8785.CanonicalizationError as error:
        raise InvalidDocumentError(f"no canonical form, so no digest: {error}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no disk can hold
        return False


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping; duplicate keys and anything that is not a mapping are refused."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDocumentError(f"{path}: cannot be read ({error})") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Read one YAML mapping from ``text``; ``where`` names it in the message of InvalidDocumentError."""
    try:
        body = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - subclass of the safe loader
    except yaml.YAMLError as error:
        raise InvalidDocumentError(f"{where}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise InvalidDocumentError(f"{where}: nested too deeply to be a document") from error
    except InvalidDocumentError as error:
        raise InvalidDocumentError(f"{where}: {error}") from error
    if not isinstance(body, dict):
        raise InvalidDocumentError(f"{where}: found {type(body).__name__}, expected a mapping of fields")
    return body


def with_field(text: str, name: str, value: str) -> str:
    """Return YAML ``text`` with the top-level field ``name`` set to ``value`` (YAML too); all else stays as written."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, node in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == name:
            start, end = key.start_mark.index, node.end_mark.index
            line_end = "\n" if text[start:end].endswith("\n") else ""
            return f"{text[:start]}{name}: {value}{line_end}{text[end:]}"
    return f"{text.rstrip()}\n{name}: {value}\n"


def parse(model: type[D], body: dict[str, Any], where: str) -> D:
    """Validate ``body`` against ``model``; every fault is named with its field and what was found."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        faults = "\n".join(f"  {_fault(model, fault)}" for fault in error.errors())
        raise InvalidDocumentError(f"{where}: not a valid {model.__name__.lower()}:\n{faults}") from error


def _fault(model: type[BaseModel], fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"]) or "document"
    if fault["type"] == "extra_forbidden":
        known = _fields_at(model, fault["loc"][:-1])
        return f"{where}: unknown field{nearest(str(fault['loc'][-1]), known) if known else ''}"
    if fault["type"] == "missing":
        return f"{where}: required field is missing"
    message = fault["msg"].removeprefix("Value error, ")
    # A fault between fields has the whole section as its input: too long to show, and no help.
    return (
        f"{where}: {message}" if isinstance(fault["input"], dict) else f"{where}: {message} (found {fault['input']!r})"
    )


def _fields_at(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            return []
        current = _model_in(field.annotation)
    return list(getattr(current, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for arg in getattr(annotation, "__args__", ()):
        found = _model_in(arg)
        if found is not None:
            return found
    return None


class Library(NamedTuple):
    """A folder of documents of one kind, ``root/NAME/VERSION.yaml`` with ``root/NAME/lock.json``."""

    kind: str
    root: Path

    def names(self) -> list[str]:
        """All document names in the library, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(p.name for p in self.root.iterdir() if p.is_dir() and any(p.glob("*.yaml")))

    def versions(self, name: str) -> list[str]:
        """All versions of ``name``, oldest first."""
        found = [p.stem for p in (self.root / name).glob("*.yaml") if re.match(VERSION_PATTERN, p.stem)]
        return sorted(found, key=by_number)

    def load(self, model: type[D], ref: str) -> D:
        """Load a document by ``name``, ``name@version`` or file path.

        Raises UnknownNameError (no such document), InvalidDocumentError (unreadable, invalid) or
        TamperedError (a released version whose digest is not the locked one).
        """
        if ref.endswith((".yaml", ".yml")) or "/" in ref:
            path = Path(ref)
            if not _is_file(path):
                raise UnknownNameError(f"{self.kind} file {ref[:200]} does not exist, or is no file")
            document = parse(model, read_yaml(path), str(path))
            self._check_lock(document, path.parent / "lock.json")
            return document
        name, pinned, version = ref.partition("@")
        if name not in self.names():
            raise UnknownNameError(f"unknown {self.kind} {name[:200]!r}{nearest(name, self.names())}")
        known = self.versions(name)
        version = version if pinned else known[-1]
        if version not in known:
            raise UnknownNameError(f"{self.kind} {name!r} has no version {version!r}; known: {', '.join(known)}")
        path = self.root / name / f"{version}.yaml"
        document = parse(model, read_yaml(path), str(path))
        if (document.name, document.version) != (name, version):
            raise InvalidDocumentError(f"{path}: says it is {document.ref}, but its place says {name}@{version}")
        self._check_lock(document, path.parent / "lock.json")
        return document

    def hold_against(self, document: Document, locked: dict[str, str]) -> None:
        """Raise TamperedError where ``document`` is a released version with another digest than ``locked`` has."""
        digest = locked.get(document.version)
        if digest is not None and digest != document.digest:
            raise TamperedError(
                f"{self.kind} {document.ref} was changed after its release: digest {document.digest[:12]}, "
                f"locked {digest[:12]}; put it back, or release the change as a new version"
            )

    def check_released(self, document: Document) -> None:
        """Raise TamperedError where ``document`` calls itself one of the library's and is not."""
        if document.name in self.names():
            self._check_lock(document, self.root / document.name / "lock.json")

    def _check_lock(self, document: Document, lock: Path) -> None:
        if lock.is_file():
            self.hold_against(document, read_lock(lock))


def by_number(version: str) -> tuple[int, ...]:
    """Sort key of versions: by number, not by spelling."""
    return tuple(int(part) for part in version.split("."))


def read_lock(path: Path) -> dict[str, str]:
    """Read ``lock.json``: version -> digest."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDocumentError(f"{path}: unreadable lock file ({error}); restore it") from error
    return parse_lock(text, str(path))


def parse_lock(text: str, where: str) -> dict[str, str]:
    """Read the text of a lock file; ``where`` names it in the message of InvalidDocumentError."""
    try:
        locked = json.loads(text)
    except ValueError as error:
        raise InvalidDocumentError(f"{where}: unreadable lock file ({error}); restore it") from error
    if not isinstance(locked, dict) or not all(isinstance(v, str) for v in locked.values()):
        raise InvalidDocumentError(f"{where}: expected a JSON object of version -> digest")
    return locked
