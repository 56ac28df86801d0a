"""The tables of other tools' faults name tests that exist, and a source for each row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest


@pytest.mark.parametrize(("page", "least"), [("faults-of-gates.md", 40), ("faults-of-harnesses.md", 25)])
def test_every_fault_has_its_test_and_its_source(repository: Path, page: str, least: int) -> None:
    """A test that is renamed takes its row along."""
    text = (repository / "docs" / page).read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if "https://" in line]
    here: dict[str, set[str]] = {}

    assert len(rows) >= least
    for row in rows:
        file, _, name = row[3].strip("`| ").partition("::")
        if file not in here:
            tree = ast.parse((repository / "tests" / file).read_text(encoding="utf-8"))
            here[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in here[file], row[0]
        assert re.fullmatch(r"\[.+\]\(https://github\.com/[\w.-]+/[\w.-]+/(issues|pull|actions/runs)/\d+\)", row[1])
