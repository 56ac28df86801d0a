"""Rescoring: stored answers under another scorer, with both verdicts kept and every flip named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evalgate.runner.run
from evalgate.errors import ExitCode
from evalgate.records import Outcome, Trial
from evalgate.runner import RunRequest, prepare, run_suite
from evalgate.store import RunFolder
from evalgate.tasks.scoring import SCORER_VERSION, score

Evalgate = Callable[..., Any]


def strict(answer: str, finish_reason: str, expected: str, scorer: str = "number") -> Outcome:
    """A scorer of an earlier version, which could not read a full stop."""
    outcome = score(answer, finish_reason, expected, scorer)
    return Outcome.WRONG if outcome is Outcome.CORRECT and expected.endswith(("1", "2", "3")) else outcome


def misjudged(trial: Trial) -> bool:
    """Whether the earlier scorer alone found it wrong; a model may be wrong on its own."""
    return (
        trial.outcome is Outcome.WRONG and score(trial.answer, trial.finish_reason, trial.expected) is Outcome.CORRECT
    )


@pytest.fixture
def old_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunFolder:
    """A run of suite ``smoke`` that an earlier scorer judged."""
    with monkeypatch.context() as patch:
        patch.setattr(evalgate.runner.run, "score", strict)
        patch.setattr("evalgate.runner.identity.SCORER_VERSION", "1")
        return run_suite(prepare(RunRequest(suite="smoke", model="builtin:hybrid", seeds=3)), tmp_path / "old")


def test_flips_are_named_and_the_old_run_stays(evalgate: Evalgate, old_run: RunFolder, tmp_path: Path) -> None:
    """The new run has the same answers, outcomes of today, and says of which run it is; the old one has not changed."""
    before = {path: path.read_bytes() for path in old_run.path.rglob("*") if path.is_file()}
    wrong = {trial.trial_id for trial in old_run.trials() if misjudged(trial)}
    listed = json.loads(evalgate("rescore", old_run.path, "--json").out)
    ended = evalgate("rescore", old_run.path, "--out", tmp_path / "new")
    new = RunFolder.open(tmp_path / "new")
    manifest = new.verify()

    assert wrong
    assert {flip["trial_id"] for flip in listed["flips"]} == wrong
    assert all((flip["before"], flip["after"]) == ("wrong", "correct") for flip in listed["flips"])
    assert f"scorer 1 -> {SCORER_VERSION}, {len(wrong)} flips" in ended.out
    assert new.trials() == [
        dataclasses.replace(t, outcome=Outcome.CORRECT) if t.trial_id in wrong else t for t in old_run.trials()
    ]
    assert new.contexts() == old_run.contexts()
    assert new.counters() == old_run.counters()
    assert manifest.rescored is not None
    assert manifest.rescored.run_id == old_run.manifest().run_id != manifest.run_id
    assert len(manifest.rescored.flips) == len(wrong)
    assert (old_run.manifest().versions["scorer"], manifest.versions["scorer"]) == ("1", SCORER_VERSION)
    assert {path: path.read_bytes() for path in before} == before
    codes = [evalgate("gate", path, "--policy", "smoke", "--json") for path in (old_run.path, new.path)]
    assert json.loads(codes[1].out)["warnings"][0]["code"] == "rescored"
    assert codes[1].code == ExitCode.PASS


def test_what_cannot_be_judged_anew_is_said(evalgate: Evalgate, old_run: RunFolder, tmp_path: Path) -> None:
    """Redacted answers keep their outcome; answers that are gone and its own folder do not do."""
    trials = old_run.trials()
    right = next(trial for trial in trials if trial.outcome is Outcome.CORRECT)
    old_run.rewrite_answers(lambda text: "[card 1]" if text == right.answer else text, "2026-01-01")
    made = json.loads(evalgate("rescore", old_run.path, "--json").out)

    assert made["left"] >= 1
    assert right.trial_id not in {flip["trial_id"] for flip in made["flips"]}
    same = evalgate("rescore", old_run.path, "--out", old_run.path)
    assert same.code == ExitCode.REFUSED
    assert "is the run itself" in same.err
    old_run.rewrite_answers(lambda _: "[removed]", "2026-01-01")
    gone = evalgate("rescore", old_run.path, "--out", tmp_path / "new")
    assert gone.code == ExitCode.REFUSED
    assert "holds no answers to judge anew" in gone.err
    assert not (tmp_path / "new").exists()
    assert evalgate("rescore", tmp_path / "none").code != ExitCode.PASS
