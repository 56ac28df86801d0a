"""The parts of a run that is not complete: one file a haystack, whole by one rename and sealed for its run.

A part that is torn, or says another haystack than its name, counts for nothing and is asked again. One that is whole
and not as it was written, or comes from another run, is tampering: asking again would hide it.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from evalgate import disk
from evalgate.errors import StorageError, TamperedError
from evalgate.tables import ChangedTableError, Part, UnreadableTableError, pack_part, unpack_part

__all__ = ["drop", "read", "sweep", "write"]

_NAME = re.compile(r"^(\d+)-(\d+)\.parquet$")


def write(folder: Path, key: tuple[int, int], part: Part, run_id: str) -> None:
    """Commit the part of haystack ``key`` = (seed, stream), in place of one that is there. Raises StorageError."""
    disk.make_folder(folder)
    disk.replace(folder / f"{key[0]}-{key[1]}.parquet", pack_part(part, run_id))


def read(folder: Path, run_id: str, *, drop_torn: bool = False) -> dict[tuple[int, int], Part]:
    """Every part by (seed, stream); torn ones are left out, and deleted if ``drop_torn``.

    Raises TamperedError: a part was changed, or is of another run. Raises StorageError.
    """
    found: dict[tuple[int, int], Part] = {}
    for path in _paths(folder):
        part = _whole(path, run_id)
        if part is not None:
            found[_key(path)] = part
        elif drop_torn:
            with disk.told("delete the torn part", path):
                path.unlink(missing_ok=True)
    return found


def sweep(folder: Path) -> None:
    """Remove what killed writers left. Raises StorageError."""
    if folder.is_dir():
        disk.sweep(folder)


def drop(folder: Path) -> None:
    """Remove all parts of a run that is complete without them; what cannot be removed does no harm."""
    with contextlib.suppress(OSError, StorageError):
        for path in _paths(folder):
            path.unlink()
        folder.rmdir()


def _paths(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    with disk.told("list", folder):
        return sorted(path for path in folder.iterdir() if _NAME.match(path.name))


def _key(path: Path) -> tuple[int, int]:
    seed, _, stream = path.stem.partition("-")
    return int(seed), int(stream)


def _whole(path: Path, run_id: str) -> Part | None:
    """Return the part at ``path``, or None where it is torn or says another haystack than its name."""
    try:
        part = unpack_part(disk.read(path) or b"", run_id)
    except UnreadableTableError:
        return None
    except ChangedTableError as error:
        raise TamperedError(
            f"{path} was changed after it was written, or comes from another run: {error}; "
            "put it back, or delete it and run the same command again, which asks its haystack anew"
        ) from error
    return None if part.fault(*_key(path)) else part
