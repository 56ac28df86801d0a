"""A run killed at any moment resumes: every step on the disk is tried as the last one."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evalgate.errors import InvalidRunError
from evalgate.records import Context, Manifest, Trial
from evalgate.store import RunFolder
from evalgate.tables import unpack_part

MakeHaystack = Callable[..., tuple[list[Context], list[Trial]]]
MakeManifest = Callable[..., Manifest]

_SCENARIO = """
import os, pickle, resource, signal, sys
from pathlib import Path
from evalgate.store import RunFolder

manifest, haystacks = pickle.loads(Path(sys.argv[1]).read_bytes())


def run(path):
    # One haystack, complete; then carried on with another. Resumes wherever a killed process left it.
    folder = RunFolder.open(path) if (path / "manifest.json").exists() else RunFolder.create(path, manifest)
    with folder.exclusive():
        for goal in (1, 2):
            todo = [h for h in haystacks[:goal] if h[:2] not in folder.done()]
            if todo or folder.manifest().status != "complete":
                folder.write_manifest(folder.manifest().model_copy(update={"status": "running"}))
                for haystack in todo:
                    folder.write_part(*haystack)
                folder.finish(manifest, {"haystacks": len(folder.done())})


def in_child(work):
    # The parent never touches pyarrow, so its threads need not survive the fork.
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

_STEPS = """
def changes(event, arguments):
    # Reading leaves the disk as it was, so only opening for writing counts.
    if event == "open":
        return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
    return event in {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}


def killed_at(step, path):
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        if changes(event, arguments) and str(arguments[0]).startswith(str(path)):
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    def work():
        sys.addaudithook(hook)
        run(path)

    return in_child(work)


base = Path(sys.argv[2])
step = 0
while True:
    step += 1
    path = base / str(step)
    code = killed_at(step, path)
    if in_child(lambda: run(path)) != 0:
        sys.exit(f"did not resume after a kill at step {step}")
    if code == 0:
        break
print(step)
"""

_HALF_WAY = """
def work():
    # Python ignores the signal; with its default action the process dies inside the write.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
    run(Path(sys.argv[2]))


print(in_child(work))
"""


@pytest.fixture
def plan(tmp_path: Path, make_manifest: MakeManifest, make_haystack: MakeHaystack) -> Path:
    """Two haystacks and their manifest, for another process to read."""
    path = tmp_path / "plan"
    path.write_bytes(pickle.dumps((make_manifest(seeds=2), [(seed, 0, *make_haystack(seed)) for seed in range(2)])))
    return path


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one: the order of steps is tried here, not the disk."""
    memory = Path("/dev/shm")  # noqa: S108 - a fresh folder of our own inside it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


def scripted(script: str, *arguments: object) -> str:
    """Run ``script`` after the scenario in a process of its own; its output."""
    command = [sys.executable, "-c", _SCENARIO + script, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_killed_before_any_step_it_resumes(quick_folder: Path, plan: Path, make_haystack: MakeHaystack) -> None:
    """Killed before each single file operation in turn, a run resumes and holds each trial exactly once."""
    steps = int(scripted(_STEPS, plan, quick_folder))

    expected = sorted((t for s in range(2) for t in make_haystack(s)[1]), key=lambda t: (t.seed, t.stream, t.trial_id))
    assert steps > 30
    for step in range(1, steps + 1):
        folder = RunFolder.open(quick_folder / str(step))
        assert folder.verify().status == "complete", f"killed at step {step}"
        assert folder.trials() == expected, f"killed at step {step}"
        assert not list(folder.path.rglob("*.writing")), f"killed at step {step}"


@pytest.mark.parametrize("size", [100, 1000, 2200, 5000])
def test_killed_inside_a_write_it_resumes(tmp_path: Path, plan: Path, size: int) -> None:
    """Killed by the system ``size`` bytes into a file, a run has no torn file under a real name, and resumes."""
    path = tmp_path / "run"

    assert int(scripted(_HALF_WAY, plan, path, size)) < 0
    assert list(path.rglob("*.writing")), "the file that was being written is still there under its working name"
    if (path / "manifest.json").exists():
        with pytest.raises(InvalidRunError, match="is interrupted"):
            RunFolder.open(path).verify()
    assert all(len(unpack_part(part.read_bytes(), "run-1").trials) == 3 for part in path.glob("parts/[0-9]*.parquet"))
    scripted("run(Path(sys.argv[2]))", plan, path)
    assert RunFolder.open(path).verify().status == "complete"
    assert len(RunFolder.open(path).trials()) == 6
