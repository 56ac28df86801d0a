"""Files that appear whole or not at all, and disk faults told as `StorageError`.

A write goes to a hidden neighbour first and takes its place by one rename, so that a process killed at any moment
leaves the old file or the new one. This module knows nothing of what a file says.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from evalgate.errors import StorageError

__all__ = ["hold", "is_held", "make_folder", "read", "replace", "sweep", "told"]

TEMPORARY = ".writing"
"""Ending of a file that is being written; one that is found later is the trace of a killed process."""

PATIENCE = (0.02, 0.05, 0.1, 0.3, 0.5)
"""Seconds between tries to hold a lock: `is_held` in another process may be looking at it just then."""

_NEXT_STEP = {
    errno.ENOSPC: "the disk is full; free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
    errno.EFBIG: "the file would pass this process's size limit; raise it (ulimit -f) and run the same command again",
    errno.EACCES: "no permission; choose another folder, or change the permission",
    errno.EPERM: "no permission; choose another folder, or change the permission",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOTDIR: "a file stands where a folder is needed; move it away, or choose another folder",
    errno.EEXIST: "a file stands where a folder is needed; move it away, or choose another folder",
    errno.EISDIR: "a folder stands where a file is needed; move it away, or choose another name",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n) and run the same command again",
}


@contextlib.contextmanager
def told(doing: str, path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a StorageError that says ``doing``, the path and the next step."""
    try:
        yield
    except OSError as error:
        known = _NEXT_STEP.get(error.errno or 0)
        advice = known or f"{error.strerror or error}; mend the disk or choose another folder"
        raise StorageError(f"cannot {doing} {path}: {advice}") from error


def make_folder(path: Path) -> None:
    """Make a folder and its parents; one that is there already is fine. Raises StorageError."""
    with told("make the folder", path):
        path.mkdir(parents=True, exist_ok=True)


def read(path: Path) -> bytes | None:
    """Return the whole file, or None where there is none. Raises StorageError for any other fault."""
    with told("read", path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def replace(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` whole, on the disk before this returns. Raises StorageError; the old file stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    with told("write", path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def sweep(folder: Path) -> None:
    """Remove what killed writers left in ``folder``. Call it only while no other process writes there."""
    with told("clean up", folder):
        for path in folder.glob(f".*{TEMPORARY}"):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def hold(lock: Path) -> Iterator[None]:
    """Hold ``lock`` for this process; the hold ends with the process, however it dies.

    Raises StorageError: another process holds it.
    """
    with told("lock", lock):
        file = lock.open("wb")
    with file:
        for pause in (*PATIENCE, None):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if pause is None:
                    raise StorageError(
                        f"another process is writing {lock.parent}; wait for it, or choose another --out"
                    ) from error
                time.sleep(pause)
        yield


def is_held(lock: Path) -> bool:
    """Whether a process that is alive holds ``lock``. Raises StorageError."""
    with told("look at the lock", lock):
        try:
            file = lock.open("rb")
        except FileNotFoundError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def _sync_folder(folder: Path) -> None:
    # A rename is on the disk only once its folder is; some file systems cannot sync a folder and need not.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
