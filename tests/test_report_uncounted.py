"""A run that nothing was counted of shows no zeros: not on the terminal, not on the page, not in a pipeline's files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures_command import keep_run
from fixtures_judged import MakeRun

from evalgate.errors import ExitCode
from evalgate.gates.policy import load_policy
from evalgate.gates.stored import stored_verdict
from evalgate.records import Outcome
from evalgate.reports.page import view_run
from evalgate.store import RunFolder

ZEROS = re.compile(r"\b0/0\b")


@pytest.fixture
def few(tmp_path: Path, make_judged_run: MakeRun) -> Path:
    """A run of 20 seeds, two of them wrong in the front, where the policy judges from 100."""
    answers = {("front",): {Outcome.WRONG: range(2)}}
    return keep_run(tmp_path / "few", *make_judged_run(load_policy("demo"), run_id="few", seeds=20, answers=answers))


def test_too_few_seeds_show_the_error_alone(evalgate: Callable[..., Any], few: Path, tmp_path: Path) -> None:
    """The terminal says what is wrong and what to do; neither it nor any file shows 0/0."""
    files = [tmp_path / "junit.xml", tmp_path / "summary.md"]
    ended = evalgate("gate", few, "--policy", "demo", "--junit", files[0], "--markdown", files[1])

    assert ended.code == ExitCode.ERROR
    assert ended.out.startswith("! ERROR the run has 20 seeds, policy demo@1.0.0 judges from 100; run with --seeds 100")
    assert "right answers" not in ended.out
    assert not any(ZEROS.search(text) for text in (ended.out, *(path.read_text() for path in files)))


def test_page_of_too_few_seeds_counts_what_is_there(evalgate: Callable[..., Any], few: Path, tmp_path: Path) -> None:
    """The page shows what the run holds, as not judged."""
    evalgate("gate", few, "--policy", "demo")
    evalgate("report", few, "--out", tmp_path / "few.html")
    page = (tmp_path / "few.html").read_text()

    folder = RunFolder.open(few)
    view = view_run(folder, stored_verdict(folder), None)
    rows = [row for table in view.bands for row in table.rows]

    assert not ZEROS.search(page)
    assert [row.ratio for row in rows] == ["18/20", "20/20", "20/20"] * 2
    assert {row.status for row in rows} == {"not judged"}
