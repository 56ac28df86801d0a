"""`evalgate gate` and `evalgate report`: verdicts as exit codes, files for pipelines, one page for people."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml

from evalgate.errors import ExitCode

Evalgate = Callable[..., Any]


@pytest.fixture
def runs(kept_runs: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Copies of the kept runs, to judge and to spoil."""
    return {name: Path(shutil.copytree(path, tmp_path / name)) for name, path in kept_runs.items()}


@pytest.mark.parametrize(
    ("run", "policy", "code", "words"),
    [
        ("good", "demo", ExitCode.PASS, "PASS"),
        ("bad", "demo", ExitCode.BLOCK, "middle"),
        ("tiny", "smoke", ExitCode.PASS, "INCONCLUSIVE"),
    ],
)
def test_exit_code_is_the_verdict(
    evalgate: Evalgate, runs: dict[str, Path], run: str, policy: str, code: ExitCode, words: str
) -> None:
    """PASS exits 0, BLOCK 1 and names the cell, and a smoke run that saw nothing exits 0 and says what it is."""
    ended = evalgate("gate", runs[run], "--policy", policy)

    assert ended.code == code
    assert words in ended.out
    assert ended.err == ""


def test_undecided_release_is_held(evalgate: Evalgate, runs: dict[str, Path], tmp_path: Path) -> None:
    """A release policy that cannot decide exits 3."""
    text = evalgate("policy", "new", "strict", "--suite", "demo").out.replace("min: 0.90", "min: 0.96")
    (tmp_path / "strict.yaml").write_text(text)

    ended = evalgate("gate", runs["bad"], "--policy", tmp_path / "strict.yaml", "--baseline", runs["good"])
    assert ended.code == ExitCode.BLOCK
    ended = evalgate("gate", runs["good"], "--policy", tmp_path / "strict.yaml")
    assert ended.code == ExitCode.PASS
    (tmp_path / "strict.yaml").write_text(text.replace("min: 0.96", "min: 0.98").replace("1.0.0", "1.0.1", 1))
    assert evalgate("policy", "lint", tmp_path / "strict.yaml").code == ExitCode.REFUSED
    assert evalgate("gate", runs["good"], "--policy", tmp_path / "strict.yaml").code == ExitCode.INCONCLUSIVE


def test_json_is_the_verdict(evalgate: Evalgate, runs: dict[str, Path]) -> None:
    """--json prints the whole verdict, its exit code and its file, and nothing else."""
    ended = evalgate("gate", runs["bad"], "--policy", "demo", "--json")

    body = json.loads(ended.out)
    assert (body["status"], body["exit_code"]) == ("BLOCK", ended.code)
    assert json.loads(Path(body["file"]).read_text())["reason"] == body["reason"]


def test_files_say_what_the_exit_code_says(evalgate: Evalgate, runs: dict[str, Path], tmp_path: Path) -> None:
    """JUnit and Markdown come from the same verdict as the exit code."""
    junit, markdown = tmp_path / "junit.xml", tmp_path / "summary.md"
    ended = evalgate("gate", runs["bad"], "--policy", "demo", "--junit", junit, "--markdown", markdown)

    assert ended.code == ExitCode.BLOCK
    assert JUnitXml.fromfile(str(junit)).failures == 1
    assert markdown.read_text().startswith("## evalgate: BLOCK")


def test_files_turn_red_where_nothing_was_judged(evalgate: Evalgate, runs: dict[str, Path], tmp_path: Path) -> None:
    """Green files of an earlier run do not outlive an error: they say that nothing was judged."""
    junit, markdown = tmp_path / "junit.xml", tmp_path / "summary.md"
    files = ("--junit", junit, "--markdown", markdown)
    assert evalgate("gate", runs["good"], "--policy", "demo", *files).code == ExitCode.PASS
    (runs["good"] / "counters.json").write_text('{"prefilled_tokens": 2}')
    ended = evalgate("gate", runs["good"], "--policy", "demo", *files)

    assert ended.code == ExitCode.TAMPERED
    assert JUnitXml.fromfile(str(junit)).errors == 1
    assert markdown.read_text().startswith("## evalgate: TAMPERED")


def test_github_job_is_told(
    evalgate: Evalgate, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a GitHub job the summary and the outputs are appended to, and a failure is annotated."""
    summary, output = tmp_path / "summary", tmp_path / "output"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    ended = evalgate("gate", runs["bad"], "--policy", "demo", "--github", "--json")

    assert summary.read_text().startswith("before\n## evalgate: BLOCK")
    assert output.read_text() == "verdict=BLOCK\nexit-code=1\n"
    assert ended.err.startswith("::error title=evalgate BLOCK::")
    assert json.loads(ended.out)["status"] == "BLOCK"


def test_github_flag_needs_a_github_job(
    evalgate: Evalgate, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--github where no job listens is refused, not ignored."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    assert evalgate("gate", runs["good"], "--policy", "demo", "--github").code == ExitCode.REFUSED


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere", "--policy", "demo"), ExitCode.ERROR, "does not exist; make it with"),
        (("{good}", "--policy", "deno"), ExitCode.REFUSED, "did you mean demo?"),
        (("{good}", "--policy", "demo@9.0.0"), ExitCode.REFUSED, "known: 1.0.0"),
        (("{good}", "--policy", "smoke"), ExitCode.REFUSED, "judges smoke@1.0.0"),
        (("{good}", "--policy", "demo", "--baseline", "nowhere"), ExitCode.ERROR, "does not exist"),
        (("{good}", "--policy", "demo", "--baseline", "{good}"), ExitCode.REFUSED, "its own baseline"),
        (("{good}", "--policy", "demo", "--junit", "{good}/manifest.json/x"), ExitCode.ERROR, "a file stands where"),
    ],
)
def test_bad_input_is_told(
    evalgate: Evalgate, runs: dict[str, Path], arguments: tuple[str, ...], code: ExitCode, words: str
) -> None:
    """Every wrong input has its code and says the next step."""
    ended = evalgate("gate", *(argument.format(**runs) for argument in arguments))

    assert ended.code == code
    assert words in ended.err
    assert "Traceback" not in ended.err


def test_report_shows_the_latest_verdict(evalgate: Evalgate, runs: dict[str, Path], tmp_path: Path) -> None:
    """The page shows the verdict that was given last, or the one of the policy and baseline that are named."""
    page = tmp_path / "deep" / "page.html"
    assert "no verdict" in evalgate("report", runs["bad"], "--out", page).out
    evalgate("gate", runs["bad"], "--policy", "demo")
    evalgate("gate", runs["bad"], "--policy", "demo", "--baseline", runs["good"])
    ended = evalgate("report", runs["bad"], "--baseline", runs["good"], "--out", page, "--json")

    body = json.loads(ended.out)
    assert body == {"file": str(page), "bytes": page.stat().st_size, "verdict": "BLOCK"}
    assert "BLOCK" in page.read_text()
    refused = evalgate("report", runs["bad"], "--policy", "smoke", "--out", page)
    assert refused.code == ExitCode.REFUSED
    assert "judge it first with `evalgate gate" in refused.err


def test_report_shows_no_forged_verdict(evalgate: Evalgate, runs: dict[str, Path], tmp_path: Path) -> None:
    """A verdict that was turned by hand is tampering, and no page is written."""
    evalgate("gate", runs["bad"], "--policy", "demo")
    verdict = runs["bad"] / "verdicts" / "demo@1.0.0.json"
    verdict.write_text(verdict.read_text().replace("BLOCK", "PASS"))
    ended = evalgate("report", runs["bad"], "--out", tmp_path / "page.html")

    assert ended.code == ExitCode.TAMPERED
    assert not (tmp_path / "page.html").exists()


def test_report_of_a_tampered_run_is_not_written(evalgate: Evalgate, runs: dict[str, Path], tmp_path: Path) -> None:
    """A run whose files were changed has no page."""
    (runs["bad"] / "trials.parquet").write_bytes((runs["good"] / "trials.parquet").read_bytes())

    assert evalgate("report", runs["bad"], "--out", tmp_path / "page.html").code == ExitCode.TAMPERED
    assert not (tmp_path / "page.html").exists()


def test_verdict_of_another_run_is_not_shown(evalgate: Evalgate, runs: dict[str, Path], tmp_path: Path) -> None:
    """A verdict that was copied from another run is not this run's."""
    evalgate("gate", runs["good"], "--policy", "demo")
    for folder in ("verdicts", "digests"):
        shutil.copytree(runs["good"] / folder, runs["bad"] / folder)
    ended = evalgate("report", runs["bad"], "--out", tmp_path / "page.html")

    assert ended.code == ExitCode.ERROR
    assert "is of run good, not of this one" in ended.err


def test_runs_are_listed_and_shown(evalgate: Evalgate, runs: dict[str, Path], tmp_path: Path) -> None:
    """Every run under a folder is listed, broken ones with their fault; one is shown with its counts and verdicts."""
    evalgate("gate", runs["bad"], "--policy", "demo")
    (runs["tiny"] / "manifest.json").write_text("{")
    body = json.loads(evalgate("runs", "list", tmp_path, "--json").out)

    rows = {Path(row["path"]).name: row for row in body["runs"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "good": "complete",
        "bad": "complete",
        "tiny": "broken",
    }
    assert rows["bad"]["verdicts"] == {"demo@1.0.0": "BLOCK"}
    assert "manifest.json" in rows["tiny"]["fault"]
    assert "BLOCK" in evalgate("runs", "list", tmp_path).out
    shown = json.loads(evalgate("runs", "show", runs["bad"], "--json").out)
    assert shown["outcomes"] == {"correct": 560, "wrong": 40}
    assert "state-int8" in evalgate("runs", "show", runs["bad"]).out
    assert "no runs in" in evalgate("runs", "list", runs["bad"] / "verdicts").out
