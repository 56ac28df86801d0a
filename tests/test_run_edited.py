"""A run that was stopped, edited by hand and started again: the edit is found, and nothing of it is judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalgate.errors import ExitCode
from evalgate.runner import Progress, RunRequest, prepare, run_suite

REQUEST = RunRequest(suite="smoke", model="builtin:hybrid", seeds=2, seed_set="tests")
WORDS = ("run", "smoke", "--model", "builtin:hybrid", "--seeds", "2", "--seed-set", "tests", "--out")


class StoppedError(Exception):
    """Where the test stops a run."""


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run of a real model that was stopped after its first haystack."""

    def stop(progress: Progress) -> None:
        if progress.done:
            raise StoppedError

    with pytest.raises(StoppedError):
        run_suite(prepare(REQUEST), tmp_path / "run", stop)
    return tmp_path / "run"


def test_stopped_run_says_what_it_is(evalgate: Callable[..., Any], stopped: Path, tmp_path: Path) -> None:
    """Judging, listing and showing call it interrupted, count haystacks of haystacks, and say how to go on."""
    ended = evalgate("gate", stopped, "--policy", "smoke")
    planned = json.loads((stopped / "manifest.json").read_text())["haystacks"]

    assert ended.code == ExitCode.ERROR
    assert f"is interrupted: 1 of {planned} haystacks are kept; finish it with the same `evalgate run`" in ended.err
    (row,) = json.loads(evalgate("runs", "list", tmp_path, "--json").out)["runs"]
    shown = json.loads(evalgate("runs", "show", stopped, "--json").out)
    assert row["status"] == shown["status"] == "interrupted"


def test_edited_part_stops_the_resumed_run(evalgate: Callable[..., Any], stopped: Path) -> None:
    """A wrong answer made right exits 5; with the part deleted the same command completes the run honestly."""
    (path,) = (stopped / "parts").glob("*.parquet")
    table = pq.read_table(path)
    at = table.schema.get_field_index("answer")
    wrong = pa.array(["999999"] * len(table), pa.string())
    pq.write_table(table.set_column(at, table.schema.field(at), wrong), path)

    ended = evalgate(*WORDS, stopped)
    assert ended.code == ExitCode.TAMPERED
    assert path.name in ended.err
    path.unlink()
    ended = evalgate(*WORDS, stopped)
    assert ended.code == ExitCode.PASS
    assert "18 trials" in ended.out
