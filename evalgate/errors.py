"""Every error that evalgate raises on purpose, and the exit code that it means.

EvalgateError
├── RefusedError            2  refused before the first token: the request itself is wrong
│   ├── UnknownNameError    2  a suite, profile, policy, model, task or arm that does not exist
│   ├── InvalidDocumentError 2 YAML that is unreadable, or has unknown, duplicate or impossible fields
│   ├── UnsupportedError    2  a setting that this model or backend cannot do
│   ├── DoesNotFitError     2  a length that the window or the memory does not allow, or too short for its needles
│   └── MismatchError       2  a run folder of another suite, model or profile
├── BrokenError             4  the world is broken: disk, checkpoint, run folder
│   ├── CheckpointError     4  missing, corrupt or truncated weights, or tensors of another shape
│   ├── StorageError        4  disk full, or an output folder that cannot be written
│   ├── InvalidRunError     4  empty, partial, missing or unparsable run files
│   └── InvalidEvidenceError 4 evidence, a ledger or a key that is missing or unparsable
└── TamperedError           5  a digest that does not match a file that still parses

A message says what was found, what was expected, and the next step.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the command line; the README has the same table."""

    PASS = 0
    BLOCK = 1
    REFUSED = 2
    INCONCLUSIVE = 3
    ERROR = 4
    TAMPERED = 5
    INTERRUPTED = 130


class EvalgateError(Exception):
    """Base of all errors that a user can cause or must act on."""

    exit_code: ExitCode = ExitCode.ERROR


class RefusedError(EvalgateError):
    """Refused before the first token: the request itself is wrong."""

    exit_code = ExitCode.REFUSED


class UnknownNameError(RefusedError):
    """A name that does not exist; the message offers the nearest ones."""


class InvalidDocumentError(RefusedError):
    """A suite, profile or policy that is unreadable or says something impossible."""


class UnsupportedError(RefusedError):
    """A setting that this model or backend cannot do; it is never ignored."""


class DoesNotFitError(RefusedError):
    """A length that the window or memory does not allow, or that is too short for its needles."""


class MismatchError(RefusedError):
    """A run folder that belongs to another suite, model or profile."""


class BrokenError(EvalgateError):
    """Something outside the request is broken."""


class CheckpointError(BrokenError):
    """Weights or configuration that are missing, corrupt, truncated or of another shape."""


class StorageError(BrokenError):
    """A disk that is full, or a folder that cannot be written or read."""


class InvalidRunError(BrokenError):
    """A run folder that is empty, partial, missing a file, or unparsable."""


class InvalidEvidenceError(BrokenError):
    """Evidence, a ledger or a key that is missing or unparsable."""


class TamperedError(EvalgateError):
    """A file that parses but whose digest does not match the recorded one."""

    exit_code = ExitCode.TAMPERED


def nearest(name: str, known: list[str]) -> str:
    """Return ``"; did you mean X, Y?"`` for the known names closest to ``name``, or the list of all."""
    import difflib

    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {', '.join(close)}?"
    return f"; known: {', '.join(sorted(known)) or 'none'}"
