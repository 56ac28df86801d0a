"""Disk faults: told with the next step, and nothing lost."""

from __future__ import annotations

import fcntl
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from evalgate import disk
from evalgate.errors import StorageError
from evalgate.records import Context, Manifest, Trial
from evalgate.store import RunFolder

MakeHaystack = Callable[..., tuple[list[Context], list[Trial]]]
MakeManifest = Callable[..., Manifest]


@pytest.fixture
def running(tmp_path: Path, make_manifest: MakeManifest, make_haystack: MakeHaystack) -> RunFolder:
    """Give a run of three haystacks that is not finished."""
    folder = RunFolder.create(tmp_path / "run", make_manifest())
    for seed in range(3):
        folder.write_part(seed, 0, *make_haystack(seed))
    return folder


def test_file_in_the_way_is_a_storage_error(tmp_path: Path, make_manifest: MakeManifest) -> None:
    """An output path that is a file, or lies under one, is refused with the next step."""
    (tmp_path / "file").write_text("")

    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(StorageError, match="a file stands where a folder is needed"):
            RunFolder.create(path, make_manifest())


def test_folder_in_the_way_of_a_file_is_a_storage_error(running: RunFolder) -> None:
    """A folder where a result file must go stops the run with its parts kept."""
    (running.path / "counters.json").mkdir()
    (running.path / "counters.json" / "x").write_text("")

    with pytest.raises(StorageError, match=r"counters\.json"):
        running.finish(running.manifest(), {})
    assert len(running.done()) == 3


def test_read_only_output_is_a_storage_error(make_manifest: MakeManifest) -> None:
    """A folder that no one may write to, root included, is refused with its path."""
    with pytest.raises(StorageError, match="cannot make the folder /proc/evalgate"):
        RunFolder.create(Path("/proc/evalgate/run"), make_manifest())


_FULL = """
import pickle, resource, sys
from pathlib import Path
from evalgate.errors import StorageError
from evalgate.store import RunFolder
folder = RunFolder.open(Path(sys.argv[1]))
haystack = pickle.loads(Path(sys.argv[2]).read_bytes())
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
try:
    folder.write_part(*haystack)
except StorageError as error:
    print(error)
"""


def test_full_disk_loses_nothing(running: RunFolder, make_haystack: MakeHaystack, tmp_path: Path) -> None:
    """A write that the disk refuses half-way leaves the old part and no trace, and says what to do."""
    plan = tmp_path / "haystack"
    plan.write_bytes(pickle.dumps((1, 0, *make_haystack(1, lost=frozenset({"back"})))))
    before = running.trials()
    command = [sys.executable, "-c", _FULL, str(running.path), str(plan)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "cannot write" in result.stdout
    assert "run the same command again" in result.stdout
    assert running.trials() == before
    assert sorted(p.name for p in (running.path / "parts").iterdir()) == ["0-0.parquet", "1-0.parquet", "2-0.parquet"]


def test_full_device_is_told_by_name(tmp_path: Path) -> None:
    """ENOSPC from the system becomes a message about space."""
    with (
        pytest.raises(StorageError, match="the disk is full; free some space"),
        disk.told("write", tmp_path),
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"x")


def test_lock_is_held_by_one(tmp_path: Path) -> None:
    """A lock that is held is seen to be, refuses a second writer, and is free afterwards."""
    lock = tmp_path / "lock"
    assert not disk.is_held(lock)
    assert not lock.exists(), "looking makes no file"
    with disk.hold(lock):
        assert disk.is_held(lock)
        with pytest.raises(StorageError, match="another process is writing"), disk.hold(lock):
            pass
    assert not disk.is_held(lock)


def test_looking_at_a_lock_keeps_no_writer_out(tmp_path: Path) -> None:
    """A writer that comes while a reader looks waits the moment that it takes."""
    lock = tmp_path / "lock"
    lock.touch()
    with lock.open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        end_of_look = threading.Timer(0.01, fcntl.flock, (looking, fcntl.LOCK_UN))
        end_of_look.start()
        with disk.hold(lock):
            assert disk.is_held(lock)
        end_of_look.join()
