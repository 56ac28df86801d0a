"""The floor plan: rooms, links, and one noun a file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOMS = ("gates", "kernels", "reports", "tasks")
FOLDERS = {*ROOMS, "evalgate", "tests", "docs", "tools", "benchmarks"}
FILES = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "action.yml"}
MOST_LINES = 400


def tracked(repository: Path) -> list[tuple[str, str]]:
    """(mode, path) of every file that git tracks."""
    command = ["git", "-C", str(repository), "ls-files", "--stage", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [row.split("\t") for row in listed.split("\0") if row]
    return [(meta.split()[0], path) for meta, path in rows]


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_linked(repository: Path, room: str) -> None:
    """Each room is a real folder at the top, and a relative link of the same name in the package."""
    assert (repository / room).is_dir()
    assert not (repository / room).is_symlink()
    assert (repository / "evalgate" / room).readlink() == Path("..", room)


def test_links_are_committed_as_links(repository: Path) -> None:
    """Git holds the four links as links and nothing else as one."""
    links = {path for mode, path in tracked(repository) if mode == "120000"}

    assert links == {f"evalgate/{room}" for room in ROOMS}


def test_kernels_is_a_namespace(repository: Path) -> None:
    """A regular package named ``kernels`` in the checkout would be imported by transformers in place of PyPI's."""
    assert not (repository / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize("room", ["gates", "reports", "tasks"])
def test_other_rooms_are_packages(repository: Path, room: str) -> None:
    """The other rooms are regular packages."""
    assert (repository / room / "__init__.py").is_file()


def test_top_level_is_the_floor_plan(repository: Path) -> None:
    """Nothing lies at the top that the floor plan does not name; dotfiles apart."""
    top = {path.partition("/")[0] for _, path in tracked(repository)}

    assert {name for name in top if not name.startswith(".")} <= FOLDERS | FILES


def test_no_file_is_long(repository: Path) -> None:
    """No Python file has more than 400 lines: a longer one holds two nouns."""
    folders = [repository / folder for folder in sorted(FOLDERS)]
    lengths = {
        str(path.relative_to(repository)): len(path.read_text(encoding="utf-8").splitlines())
        for folder in folders
        for path in folder.rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
    }

    assert len(lengths) > 20
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_file_names_a_place_on_one_machine(repository: Path) -> None:
    """Results of benchmarks, docs and code are the same wherever they are made; tests may make up places."""
    place = re.compile(r"(?<![\w.~/])/(?:tmp|home|root|work|Users|mnt)/[\w.-]")
    found = []
    for _, path in tracked(repository):
        file = repository / path
        if not path.startswith("tests/") and file.is_file() and not file.is_symlink():
            text = file.read_bytes().decode("utf-8", "ignore")
            found += [f"{path}: {match[0]}" for match in place.finditer(text)]

    assert found == []


def test_no_attic(repository: Path) -> None:
    """No module is called utils, helpers, common or misc: a helper lives with its noun."""
    names = {Path(path).stem.strip("_") for _, path in tracked(repository) if path.endswith(".py")}

    assert names & {"utils", "util", "helpers", "helper", "common", "misc"} == set()
