"""The audit: negative controls have one right answer each, and false BLOCKs are counted against their budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures_judged import MakeRun, changed, judged

from evalgate.errors import ExitCode, UnknownNameError
from evalgate.gates import audit
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.verdict import Verdict
from evalgate.records import Outcome
from evalgate.tasks.suite import load_suite

Evalgate = Callable[..., Any]


@pytest.fixture
def verdict(demo: Policy, make_judged_run: MakeRun) -> Callable[[int], Verdict]:
    """``verdict(misses)``: of a run that loses so many in one band."""

    def make(misses: int) -> Verdict:
        answers = {("single", "middle"): {Outcome.WRONG: range(misses)}}
        return judged(make_judged_run(demo, profile="state-int8", answers=answers), demo)

    return make


@pytest.mark.parametrize(("blocks", "met"), [(0, True), (3, True), (4, False)])
def test_four_false_blocks_of_twenty_are_too_many(
    demo: Policy, verdict: Callable[[int], Verdict], blocks: int, met: bool
) -> None:
    """Three of 20 have a chance of .075, four of .016: that many raise the alarm by name."""
    good, bad = verdict(0), verdict(60)
    control = audit.judge_same([bad] * blocks + [good] * (20 - blocks), demo)

    assert control.met is met
    assert f"{blocks} of 20 gates block" in control.seen
    assert ("gate-miscalibrated: so many have a chance of 0.016" in control.seen) is not met


def test_gates_that_are_not_valid_are_no_evidence(demo: Policy, make_judged_run: MakeRun) -> None:
    """An A/A gate that ends in ERROR shows nothing about false BLOCKs."""
    control = audit.judge_same([judged(make_judged_run(demo, seeds=3), demo)], demo)

    assert not control.met
    assert "1 of 1 gates are not valid" in control.seen


def test_controls_have_one_answer(demo: Policy, verdict: Callable[[int], Verdict]) -> None:
    """The oracle must pass and shuffled values block; an open cell is neither. No answer at all shows nothing."""
    smoke = changed(demo, kind="smoke")

    assert audit.judge_oracle(verdict(0), demo).met
    assert not audit.judge_oracle(verdict(8), demo).met
    assert not audit.judge_oracle(verdict(0), smoke).met, "a smoke policy that passes is broken"
    assert audit.judge_shuffled(verdict(60)).met
    assert not audit.judge_shuffled(verdict(8)).met
    assert [audit.judge_absent(*counts).met for counts in ((5, 100), (6, 100), (0, 0))] == [True, False, False]
    assert audit.judge_wrong_model(UnknownNameError("no such")).met
    assert not audit.judge_wrong_model(None).met


def test_the_command_tries_the_gate(evalgate: Evalgate, tmp_path: Path) -> None:
    """On a model that retrieves, every control is met, and the absent needle is asked of the model itself."""
    suite = load_suite("smoke").model_dump(mode="json", by_alias=True) | {"name": "few", "tasks": ["single"]}
    body = load_policy("demo").model_dump(mode="json", by_alias=True)
    rule = body["cells"][0] | {"task": ["single"], "min": 0.5}
    document = body | {"name": "few", "suite": "few@1.0.0", "looks": [4], "cells": [rule]}
    document |= {"alpha": {"pass": 0.1, "block": {"absolute": 0.4, "paired": 0.02, "guard": 0.01}}}
    document |= {"baseline": {"use": "optional", "break_margin": 0.6}}
    paths = tmp_path / "suite.yaml", tmp_path / "policy.yaml"
    for path, content in zip(paths, (suite, document), strict=True):
        path.write_text(json.dumps(content))
    words = ("audit", paths[0], "--model", "builtin:hybrid", "--policy", paths[1], "--out", tmp_path / "audit")
    ended = evalgate(*words, "--repeats", "1", "--json")
    body = json.loads(ended.out)

    assert {control["name"]: control["met"] for control in body["controls"]} == dict.fromkeys(
        ("wrong-model", "oracle", "shuffled", "absent", "same-model"), True
    )
    assert (ended.code, body["as_expected"]) == (ExitCode.PASS, True)
    assert next(c for c in body["controls"] if c["name"] == "absent")["seen"] == "0 of 12 right"
