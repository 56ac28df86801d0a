"""The manifest as a file: JSON that carries the digest of its own fields.

The digest is a field more, ``sha256``, and not a file beside it, so that one rename writes both.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from evalgate import disk
from evalgate.errors import InvalidDocumentError, InvalidRunError, TamperedError
from evalgate.records import Manifest
from evalgate.versioned import canonical_digest

__all__ = ["read", "write"]

DIGEST_FIELD = "sha256"
_RERUN = "run again into a new folder"


def read(path: Path) -> Manifest:
    """Read a manifest. Raises InvalidRunError (missing, unparsable) or TamperedError (its digest differs)."""
    content = disk.read(path)
    if content is None:
        raise InvalidRunError(f"{path.parent} is not a run folder: found no {path.name} in it")
    try:
        body = json.loads(content)
        stated = body.pop(DIGEST_FIELD)
        manifest = Manifest.model_validate(body)
        actual = canonical_digest(body)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:3])
        raise InvalidRunError(
            f"{path}: not a manifest of this version ({told}); run again into a new folder"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidDocumentError) as error:
        raise InvalidRunError(f"{path}: not a readable manifest ({error!r}); {_RERUN}") from error
    if stated != actual:
        raise TamperedError(f"{path} was changed after it was written: digest {actual[:12]}, recorded {stated}")
    return manifest


def write(path: Path, manifest: Manifest) -> None:
    """Write a manifest whole, with the digest of its fields. Raises StorageError."""
    body = manifest.model_dump(mode="json")
    sealed = {**body, DIGEST_FIELD: canonical_digest(body)}
    text = json.dumps(sealed, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    disk.replace(path, f"{text}\n".encode())
