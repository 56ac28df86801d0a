"""The wheel holds what the checkout holds, and the project says of itself what is true."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from evalgate import __version__

IGNORED = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "build", "dist", "tests", "evalgate-demo", "runs")
Build = Callable[[Path], Path]


@pytest.fixture
def checkout(repository: Path, tmp_path: Path) -> Path:
    """A copy of the checkout, links kept as links, to build from and to spoil."""
    return Path(shutil.copytree(repository, tmp_path / "checkout", symlinks=True, ignore=IGNORED))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """``build(checkout)``: its wheel, built without a network."""

    def call(root: Path) -> Path:
        out = tmp_path / "wheel"
        options = ["--no-deps", "--no-build-isolation", "--no-index", "-qq", "--wheel-dir", str(out)]
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(root)], check=True, cwd=tmp_path)
        (wheel,) = out.glob("*.whl")
        return wheel

    return call


def check(root: Path, wheel: Path) -> subprocess.CompletedProcess[str]:
    """Compare ``wheel`` with the checkout at ``root``."""
    command = [sys.executable, str(root / "tools" / "check_wheel.py"), str(wheel)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_wheel_is_the_checkout(checkout: Path, build: Build) -> None:
    """The wheel has every file of the package and its rooms, byte for byte, and nothing else."""
    checked = check(checkout, build(checkout))

    assert (checked.returncode, checked.stderr) == (0, "")
    assert "rooms gates, kernels, reports, tasks: as in the checkout" in checked.stdout


def test_wheel_without_links_is_noticed(checkout: Path, build: Build) -> None:
    """A checkout whose links became text files, as on Windows, builds a wheel that the check refuses."""
    for room in ("gates", "kernels", "reports", "tasks"):
        link = checkout / "evalgate" / room
        link.unlink()
        link.write_text(f"../{room}")
    checked = check(checkout, build(checkout))

    assert checked.returncode == 1
    for room in ("gates", "kernels", "reports", "tasks"):
        assert f"room {room} has no files" in checked.stderr


def test_forgotten_and_stale_files_are_noticed(checkout: Path, build: Build) -> None:
    """A data file that no pattern takes, one that was left in an old build, and a second top level are each named."""
    (checkout / "tasks" / "words.dat").write_text("not a kind of file that is packaged")
    stale = checkout / "build" / "lib" / "evalgate"
    stale.mkdir(parents=True)
    (stale / "removed.py").write_text("")
    (checkout / "build" / "lib" / "strange.py").write_text("")
    checked = check(checkout, build(checkout))

    assert checked.returncode == 1
    assert "evalgate/tasks/words.dat is missing from the wheel" in checked.stderr
    assert "evalgate/removed.py is in the wheel but not in the checkout" in checked.stderr
    assert "strange.py lies at the top of the wheel" in checked.stderr


def test_project_is_what_was_promised(repository: Path) -> None:
    """Name, command and licence are the published ones; the version is the package's."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))

    assert project["project"]["name"] == "evalgate-longctx"
    assert project["project"]["scripts"] == {"evalgate": "evalgate.cli:entry"}
    assert project["project"]["license"] == "Apache-2.0"
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "evalgate.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert (repository / "LICENSE").read_text(encoding="utf-8").split()[:2] == ["Apache", "License"]


def test_every_exception_has_its_reason(repository: Path) -> None:
    """Each ruff rule that is off, each mypy override and each warning that is let through says why on its line."""
    inside = False
    for line in (repository / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        if re.match(r"^(ignore|filterwarnings) = \[$|^\"[a-z]+/\*\" = \[$|^\[\[tool\.mypy\.overrides", line):
            inside = True
        elif line in {"]", ""}:
            inside = False
        elif inside and line.strip() != '"error",' and not line.startswith("module"):
            assert "#" in line, f"no reason: {line}"


def test_make_targets_are_those_documented(repository: Path) -> None:
    """The four targets exist, set themselves up, and the checks that every change must pass call them."""
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    ci = (repository / ".ci" / "run").read_text(encoding="utf-8")

    for target in ("demo", "test", "check", "bench"):
        assert re.search(rf"^{target}: \$\(STAMP\)$", makefile, re.MULTILINE)
    assert re.search(r"^make check$", ci, re.MULTILINE)
    assert re.search(r"^make test$", ci, re.MULTILINE)


def test_action_is_valid(repository: Path) -> None:
    """The GitHub action is a composite one, every step that runs something names bash, and inputs are not pasted."""
    action = yaml.safe_load((repository / "action.yml").read_text(encoding="utf-8"))

    assert action["runs"]["using"] == "composite"
    steps = [step for step in action["runs"]["steps"] if "run" in step]
    assert steps
    for step in steps:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "an input pasted into a script is run as part of it; pass it by env"
    used = set(re.findall(r"inputs\.([a-z-]+)", (repository / "action.yml").read_text(encoding="utf-8")))
    assert used == set(action["inputs"])


def test_changelog_names_this_version(repository: Path) -> None:
    """The changelog has a section for what is not released yet, or for this version."""
    headings = re.findall(r"^## \[([^\]]+)\]", (repository / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert headings[0] in {"Unreleased", __version__}
