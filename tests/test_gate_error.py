"""The simulation behind benchmarks/gate_error.json: its gates are the judge, and its rates keep what is promised."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures_judged import MakeRun, changed, compared, judged

from evalgate.gates.policy import Policy
from evalgate.gates.verdict import Status, Verdict
from evalgate.records import Outcome

LOOKS = [60, 120, 240]
CASES = 24


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch, repository: Path) -> Any:
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    return importlib.import_module("gate_error")


def seen(outcome: Any, at: int) -> tuple[Status, int]:
    """Word and haystacks of one simulated gate."""
    word = Status.ERROR if outcome.error[at] else Status.BLOCK if outcome.blocked[at] else Status.INCONCLUSIVE
    return Status.PASS if outcome.passed[at] else word, int(outcome.haystacks[at])


def known(right: Any, old: Any) -> Any:
    """Draws of answers that are known: right and old are (gates, seeds, cells)."""

    def draw(gates: Any, first: int, end: int) -> Any:
        new, was = right[gates, first:end], old[gates, first:end]
        return new.sum(axis=1), (was & ~new).sum(axis=1), (new & ~was).sum(axis=1)

    return draw


def answers(policy: Policy, right: Any) -> Any:
    """Answers for a run: right is (seeds, cells)."""
    wrong = [np.flatnonzero(~right[:, i]).tolist() for i in range(right.shape[1])]
    return {tuple(cell): {Outcome.WRONG: seeds} for cell, seeds in zip(policy.rules, wrong, strict=True)}


def said(verdict: Verdict) -> tuple[Status, int | None]:
    """Word and last look of the judge; ERROR names the look at which it was found."""
    return verdict.status, verdict.n


@pytest.mark.parametrize("paired", [False, True])
def test_simulated_gates_are_the_judge(simulation: Any, make_judged_run: MakeRun, paired: bool) -> None:
    """On the same answers a simulated gate says what the judge says, after as many haystacks."""
    policy = changed(simulation.shaped(3, LOOKS, guards=3), baseline={"use": "optional", "break_margin": 0.1})
    rng = np.random.default_rng(3)
    recall = rng.choice([0.78, 0.88, 0.92, 0.96, 1.0], (CASES, 1, 6))
    right = rng.random((CASES, LOOKS[-1], 6)) < recall
    old = right ^ (rng.random(right.shape) < rng.choice([0.01, 0.1], (CASES, 1, 1)))
    outcome = simulation.gate(policy, known(right, old), CASES, paired=paired, floor=not paired)
    words = set()
    for at in range(CASES):
        run = make_judged_run(policy, seeds=LOOKS[-1], answers=answers(policy, right[at]))
        if paired:
            bare = changed(policy, validity={"floor": None})
            base = make_judged_run(policy, run_id="base", seeds=LOOKS[-1], answers=answers(policy, old[at]))
            assert seen(outcome, at) == said(compared(run, base, bare))
        elif outcome.error[at]:
            first = next(n for n in LOOKS if judged(first_seeds(run, n), policy).status is Status.ERROR)
            assert seen(outcome, at) == (Status.ERROR, first)
        else:
            assert seen(outcome, at) == said(judged(run, policy))
        words.add(seen(outcome, at)[0])
    assert words >= {Status.BLOCK, Status.INCONCLUSIVE, Status.PASS} - ({Status.PASS} if paired else set())


def first_seeds(run: Any, n: int) -> Any:
    """The run as it was at a look."""
    manifest, trials = run
    return manifest.model_copy(update={"seeds": n}), [trial for trial in trials if trial.seed < n]


def test_error_rates_keep_their_promise(simulation: Any) -> None:
    """A small run with a fixed seed: both rates are within four standard errors of at most .05, and power is there."""
    rng, gates = np.random.default_rng(1), 1500
    slack = 4 * (0.05 * 0.95 / gates) ** 0.5
    bad = simulation.run(simulation.shaped(12), simulation.level(12, 0.9, 0.3, others=0.995), gates, rng)
    at_bar = simulation.run(simulation.shaped(12), simulation.level(12, 0.9, 0.0), gates, rng)
    good = simulation.run(simulation.shaped(12), simulation.level(12, 0.97, 0.1), gates, rng)

    assert 0.045 - slack < bad["pass"] < 0.045 + slack
    assert at_bar["block"] <= 0.05
    assert good["pass"] > 0.99
    assert good["haystacks"] < 300


def test_committed_rates_keep_their_promise(repository: Path) -> None:
    """The committed table has enough gates a point, and no rate above its limit."""
    table = json.loads((repository / "benchmarks/gate_error.json").read_text(encoding="utf-8"))

    assert table["gates"] >= 20_000
    assert table["targets_met"]
    assert len(table["errors"]) == 30
    assert all(row[row["wrong"]] <= 0.05 for row in table["errors"])
    assert {(row["cells"], row["recall"]) for row in table["powers"]} >= {
        (cells, f"all {recall}") for cells in (3, 12, 36) for recall in (0.85, 0.88, 0.92, 0.95, 0.97, 0.99)
    }
