"""`evalgate check` under looks, with a real model: what is asked, resumed, sealed and judged again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalgate.errors import ExitCode, MismatchError
from evalgate.gates.judge_run import gate_run
from evalgate.gates.policy import Policy, load_policy
from evalgate.records import Cell, Manifest
from evalgate.runner import Bench, Looks, RunRequest, prepare, run_suite
from evalgate.runner.looks import planned
from evalgate.store import RunFolder

LOOKS = [4, 6, 8]
REQUEST = RunRequest(suite="demo", model="builtin:hybrid", profile="state-rank-7", seeds=8, seed_set="looks")
Evalgate = Callable[..., Any]


@pytest.fixture(scope="module")
def policy() -> Policy:
    """A bar so low that four right answers pass, and one that no four can pass; the last cell is a guard."""
    body = load_policy("demo").model_dump(mode="json", by_alias=True)
    rule = body["cells"][0]
    cells = [
        rule | {"task": ["single"], "min": 0.3},
        rule | {"task": ["multikey@8"], "band": ["front", "middle"], "min": 0.6},
        rule | {"task": ["multikey@8"], "band": ["back"], "tier": "guard"},
    ]
    return Policy.model_validate(body | {"name": "looks", "looks": LOOKS, "n_guard": 2, "cells": cells})


@pytest.fixture(scope="module")
def bench() -> Bench:
    """The embedded model with a compressed state."""
    return prepare(REQUEST)


@pytest.fixture(scope="module")
def drawn(bench: Bench, policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A complete run that was drawn look by look."""
    return run_suite(bench, tmp_path_factory.mktemp("runs") / "drawn", looks=Looks(policy))


@pytest.fixture(scope="module")
def whole(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The same run with every cell asked every seed."""
    return run_suite(bench, tmp_path_factory.mktemp("runs") / "whole")


def asked(manifest: Manifest) -> dict[tuple[str, str], int]:
    """(task, band) -> seeds that the schedule asks."""
    assert manifest.schedule is not None
    return {(c[0], c[2]): n for c, n in zip(manifest.cells, manifest.schedule.asked, strict=True)}


def test_decided_cells_are_not_asked_on(drawn: RunFolder, bench: Bench) -> None:
    """`single` passes at the first look, the guard has its two seeds, eight keys go on; trials are just the planned."""
    manifest, trials = drawn.verify(), drawn.trials()

    assert asked(manifest) == {
        ("single", "front"): 4,
        ("single", "middle"): 4,
        ("single", "back"): 4,
        ("multikey@8", "front"): 8,
        ("multikey@8", "middle"): 8,
        ("multikey@8", "back"): 2,
    }
    expected = {(task.seed, cell) for task in planned(manifest, bench.source.streams) for cell in task.cells}
    assert {(trial.seed, trial.cell) for trial in trials} == expected
    assert len(trials) == len(expected) == 3 * 4 + 2 * 8 + 2
    assert manifest.haystacks == len({(trial.seed, trial.stream) for trial in trials})


def test_what_is_asked_is_asked_as_ever(drawn: RunFolder, whole: RunFolder) -> None:
    """Every trial has the prompt and the answer that it has in a run which asks everything."""
    others = {trial.trial_id: (trial.prompt_sha256, trial.answer, trial.depth) for trial in whole.trials()}

    for trial in drawn.trials():
        assert others[trial.trial_id] == (trial.prompt_sha256, trial.answer, trial.depth)


def test_the_gate_says_the_same_of_both(drawn: RunFolder, whole: RunFolder, policy: Policy) -> None:
    """The verdict on the folder is that on the run which asked everything, cell by cell."""
    ours, theirs = gate_run(drawn, policy), gate_run(whole, policy)

    assert ours.cells == theirs.cells
    assert (ours.status, ours.reason, ours.n) == (theirs.status, theirs.reason, theirs.n)
    assert gate_run(drawn, policy) == ours


@pytest.mark.parametrize("at", [5, 8])
def test_a_killed_check_goes_on(
    bench: Bench, drawn: RunFolder, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Killed within the first look or just after it: the same command ends with the same run."""
    from evalgate.runner import run as module

    judged, left = module.trials_of, [at]

    def dies(*arguments: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return judged(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "trials_of", dies)
        with pytest.raises(KeyboardInterrupt):
            run_suite(bench, tmp_path / "run", looks=Looks(policy))
    folder = run_suite(bench, tmp_path / "run", looks=Looks(policy))

    assert folder.manifest().schedule == drawn.manifest().schedule
    assert [(t.trial_id, t.answer) for t in folder.trials()] == [(t.trial_id, t.answer) for t in drawn.trials()]


def test_a_finished_check_asks_nothing_again(bench: Bench, drawn: RunFolder, policy: Policy) -> None:
    """The same command finds it complete."""
    before = (drawn.path / "trials.parquet").read_bytes()
    run_suite(bench, drawn.path, looks=Looks(policy))

    assert (drawn.path / "trials.parquet").read_bytes() == before


def test_other_looks_never_mix_in(bench: Bench, drawn: RunFolder, whole: RunFolder, policy: Policy) -> None:
    """Neither a run without looks, nor another policy, nor looks in a run without."""
    with pytest.raises(MismatchError, match=r"another plan of looks: found the looks of policy looks@1\.0\.0"):
        run_suite(bench, drawn.path)
    other = policy.model_copy(update={"version": "1.0.1"})
    with pytest.raises(MismatchError, match=r"asked for the looks of policy looks@1\.0\.1"):
        run_suite(bench, drawn.path, looks=Looks(other))
    with pytest.raises(MismatchError, match="found every seed of every cell, asked for the looks of policy"):
        run_suite(bench, whole.path, looks=Looks(policy))


def test_an_edited_schedule_is_tampered(evalgate: Evalgate, drawn: RunFolder, policy: Policy, tmp_path: Path) -> None:
    """A schedule that was edited to look finished earlier is found before anything is judged."""
    run = Path(shutil.copytree(drawn.path, tmp_path / "run"))
    path = run / "manifest.json"
    body = json.loads(path.read_text())
    body["schedule"]["asked"][3] = 4
    path.write_text(json.dumps(body))
    rules = tmp_path / "looks.yaml"
    rules.write_text(json.dumps(policy.model_dump(mode="json", by_alias=True)))

    assert evalgate("gate", run, "--policy", rules).code == ExitCode.TAMPERED


def test_check_draws_by_a_policy_file(evalgate: Evalgate, policy: Policy, tmp_path: Path) -> None:
    """The command runs, judges and reports; a policy file serves as well as a name."""
    cells = [rule.model_dump(mode="json") for rule in policy.cells if rule.tier == "primary"][:1]
    body = policy.model_dump(mode="json", by_alias=True) | {"cells": cells}
    rules = tmp_path / "looks.yaml"
    rules.write_text(json.dumps(body))
    words = ("check", "demo", "--model", "builtin:hybrid", "--profile", "state-rank-7", "--policy", rules)
    ended = evalgate(*words, "--out", tmp_path / "run", "--json")

    assert ended.code == ExitCode.PASS, ended.err
    assert json.loads(ended.out)["n"] == 4
    assert (tmp_path / "run/report.html").is_file()
    assert RunFolder.open(tmp_path / "run").manifest().seeds == 4


def test_a_haystack_is_read_only_to_the_longest_open_cell(bench: Bench) -> None:
    """Without the longest length the tokens are a prefix of the same haystack, with the same prompts."""
    from evalgate.tasks.haystack import Builder
    from evalgate.tasks.suite import load_suite

    suite = load_suite("needle").model_copy(update={"lengths": [1024, 2048], "tasks": ["single"]})
    builder = Builder(suite, bench.backend.tokenizer, "looks")
    stream = max(builder.streams, key=lambda s: len({entry.length for entry in s.entries}))
    haystack = builder.build(0, stream)
    every = {probe.cell for probe in haystack.probes}
    short = {cell for cell in every if cell.length == 1024}
    cut = haystack.only(short)

    assert haystack.only(every) == haystack
    assert 0 < len(cut.tokens) < 1024 < len(haystack.tokens)
    assert cut.tokens == haystack.tokens[: len(cut.tokens)]
    assert cut.probes == [probe for probe in haystack.probes if probe.cell in short]
    assert [context.length for context in cut.contexts] == [1024]
    assert haystack.only({Cell("none", 1024, "front")}).tokens == []
