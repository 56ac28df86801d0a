"""Retention: expired text goes from every file of a run, and all that a verdict rests on stays as it was."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fixtures_evidence import FINISHED, NOW, SIGNED, Pair, payload

from evalgate import disk
from evalgate.errors import ExitCode, InvalidRunError, TamperedError
from evalgate.gates.evidence import sign
from evalgate.gates.judge_run import gate_run
from evalgate.gates.policy import load_policy
from evalgate.gates.retention import expired, has_text, remove_text
from evalgate.gates.stored import stored_verdicts
from evalgate.gates.verdict import Verdict
from evalgate.records import TextRule
from evalgate.redaction import NOT_KEPT, REMOVED
from evalgate.store import RunFolder

AT = "2025-02-01T00:00:00+00:00"
Evalgate = Callable[..., Any]


@pytest.fixture
def run(own_runs: dict[str, Path]) -> RunFolder:
    """A run that was judged against a baseline, with a report, whose verdict quotes answers."""
    (own_runs["paired"] / "report.html").write_text("answered wrong")
    return RunFolder(own_runs["paired"])


def without_answers(run: RunFolder) -> list[dict[str, Any]]:
    """Trials without their text."""
    return [{k: v for k, v in dataclasses.asdict(trial).items() if k != "answer"} for trial in run.trials()]


def without_quotes(verdict: Verdict) -> dict[str, Any]:
    """A verdict without its text."""
    body = verdict.model_dump(mode="json")
    return body | {"flips": [{k: v for k, v in flip.items() if "answer" not in k} for flip in body["flips"]]}


def test_text_goes_and_everything_else_stays(run: RunFolder, judged_runs: dict[str, tuple[RunFolder, Verdict]]) -> None:
    """No file of the run holds an answer any more; trials, verdict and digests are whole, and judging says the same."""
    trials, (verdict,) = without_answers(run), stored_verdicts(run)
    assert any(b'_answer": "wrong"' in path.read_bytes() for path in (run.path / "verdicts").iterdir())

    remove_text(run, AT)

    assert run.verify().text_removed == AT
    assert without_answers(run) == trials
    assert {trial.answer for trial in run.trials()} == {REMOVED}
    (kept,) = stored_verdicts(run)
    assert without_quotes(kept) == without_quotes(verdict)
    assert {flip.candidate_answer for flip in kept.flips} == {REMOVED}
    assert not (run.path / "report.html").exists()
    assert without_quotes(gate_run(run, load_policy("demo"), judged_runs["good"][0])) == without_quotes(verdict)
    assert [path for path in run.path.rglob("*.json") if b'_answer": "wrong"' in path.read_bytes()] == []


def test_quotes_that_come_back_go_again(run: RunFolder, judged_runs: dict[str, tuple[RunFolder, Verdict]]) -> None:
    """A verdict that is given after the removal quotes the baseline anew: the next removal takes that too."""
    remove_text(run, AT)
    assert not has_text(run)
    again = gate_run(run, load_policy("demo"), judged_runs["good"][0])
    assert {flip.baseline_answer for flip in again.flips} == {"amber tower"}
    assert has_text(run)
    remove_text(run, "2025-03-01T00:00:00+00:00")

    assert not has_text(run)
    assert run.manifest().text_removed == AT


def test_evidence_outlives_the_text(run: RunFolder, keys: dict[str, Pair]) -> None:
    """What is signed after the removal is what was signed before it, but for the note that text was removed."""
    (before,) = stored_verdicts(run)
    first = payload(sign(run, before, keys["ours"].signer, signed=SIGNED).evidence.statement)
    remove_text(run, AT)
    (after,) = stored_verdicts(run)
    second = payload(sign(run, after, keys["ours"].signer, signed=SIGNED).evidence.statement)

    assert second["predicate"]["run"].pop("text_removed") == AT
    assert first["predicate"]["run"].pop("text_removed") is None
    assert second == first


@pytest.mark.parametrize("dies_at", range(7))
def test_a_removal_that_was_killed_goes_on(run: RunFolder, monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
    """Killed before any of its writes, the run is whole, not counted as done, and the next removal finishes."""
    trials, real, writes = without_answers(run), disk.replace, 0

    def replace(path: Path, content: bytes) -> None:
        nonlocal writes
        if writes == dies_at:
            raise KeyboardInterrupt
        writes += 1
        real(path, content)

    monkeypatch.setattr(disk, "replace", replace)
    try:
        remove_text(run, AT)
    except KeyboardInterrupt:
        assert not run.answers_rewritten()
    else:
        assert dies_at >= 5
        assert run.answers_rewritten()
    monkeypatch.undo()

    run.verify()
    assert without_answers(run) == trials
    if dies_at != 1:  # between a verdict and its digest: told as changed, and judging again is the remedy
        remove_text(run, AT)
        assert run.answers_rewritten()
        assert {trial.answer for trial in run.trials()} == {REMOVED}


def test_text_that_was_never_kept_stays_told(run: RunFolder) -> None:
    """No answer, and an answer that was not kept, are not taken for removed ones."""
    marks = iter(["", NOT_KEPT])
    run.rewrite_answers(lambda answer: next(marks, answer), AT)
    run.write_manifest(run.manifest().model_copy(update={"text_removed": None}))
    remove_text(run, AT)

    assert sorted({trial.answer for trial in run.trials()}) == ["", NOT_KEPT, REMOVED]


def test_changed_runs_are_not_washed_clean(run: RunFolder, own_runs: dict[str, Path]) -> None:
    """A run with a file that was changed stays as it is, so that the change stays visible."""
    (run.path / "trials.parquet").write_bytes((own_runs["good"] / "trials.parquet").read_bytes())
    with pytest.raises(TamperedError):
        remove_text(run, AT)
    assert (run.path / "report.html").exists()
    shutil.rmtree(own_runs["bad"] / "verdicts")
    good = RunFolder(own_runs["good"])
    good.write_manifest(good.manifest().model_copy(update={"status": "partial"}))
    with pytest.raises(InvalidRunError, match="partial"):
        remove_text(good, AT)


@pytest.mark.parametrize(
    ("days", "older", "gone"),
    [
        (None, None, False),
        (1, None, True),
        (2, None, False),
        (None, timedelta(days=1), True),
        (None, timedelta(days=2), False),
        (30, timedelta(days=1), True),
        (1, timedelta(days=30), True),
        (0, None, True),
    ],
)
def test_text_expires(run: RunFolder, days: int | None, older: timedelta | None, *, gone: bool) -> None:
    """Text goes when the run's days, or those that are asked for, are over since its end; without either it stays."""
    manifest = run.manifest().model_copy(update={"text": TextRule(answers="redact", days=days)})

    assert manifest.finished == FINISHED
    assert expired(manifest, NOW, older) is gone
    assert expired(manifest.model_copy(update={"text": None}), NOW, older) is (older == timedelta(days=1))


def test_a_day_is_a_whole_day(run: RunFolder) -> None:
    """A second before the time is over the text is still there."""
    manifest = run.manifest().model_copy(update={"text": TextRule(answers="keep", days=1)})
    end = datetime(2025, 1, 2, 12, tzinfo=UTC)

    assert not expired(manifest, end - timedelta(seconds=1))
    assert expired(manifest, end)
    with pytest.raises(InvalidRunError, match="no readable time"):
        expired(manifest.model_copy(update={"finished": "once"}), end)


def test_prune_command(evalgate: Evalgate, own_runs: dict[str, Path]) -> None:
    """A look first if asked for; then what expired under a folder goes, once, and what was left is told."""
    root = own_runs["good"].parent
    good = RunFolder(own_runs["good"])
    good.write_manifest(good.manifest().model_copy(update={"text": TextRule(answers="keep", days=7)}))
    spoilt = RunFolder(own_runs["bad"])
    spoilt.write_manifest(spoilt.manifest().model_copy(update={"status": "partial"}))

    def said(*options: str) -> tuple[int, dict[str, str]]:
        ended = evalgate("runs", "prune", root, *options, "--json")
        return ended.code, {Path(row["path"]).name: row["text"] for row in json.loads(ended.out)["runs"]}

    only_good = {"bad": "kept", "good": "would be removed", "paired": "kept", "tiny": "kept"}
    assert said("--dry-run") == (ExitCode.PASS, only_good)
    assert {trial.answer for trial in good.trials()} == {"amber tower"}
    assert said() == (ExitCode.PASS, only_good | {"good": "removed"})
    assert {trial.answer for trial in good.trials()} == {REMOVED}
    rest = {"bad": "not removed", "good": "removed before", "paired": "removed", "tiny": "removed"}
    assert said("--older-than", "30d") == (ExitCode.ERROR, rest)
    told = evalgate("runs", "prune", own_runs["bad"], "--older-than", "30d")
    assert "finish it with the same `evalgate run` command" in told.out
    assert evalgate("runs", "prune", root / "nowhere").code == ExitCode.ERROR
    assert evalgate("gate", own_runs["good"], "--policy", "demo").code == ExitCode.PASS
