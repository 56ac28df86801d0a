"""The sweep: a fixed sequence of rates that ends at the first which does not pass."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures_judged import MakeRun, judged

from evalgate.errors import ExitCode
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.sweep import Rate, conclude, goes_on
from evalgate.gates.verdict import Status
from evalgate.records import Outcome
from evalgate.reports.html import render_sweep
from evalgate.reports.sweep_view import sweep_view
from evalgate.stats import Interval
from evalgate.tasks.suite import load_suite

Evalgate = Callable[..., Any]
WRONG = Outcome.WRONG
MILD, MIDDLE, HARSH = "state-bf16", "state-int8", "state-rank-8"


@pytest.fixture
def rate(demo: Policy, make_judged_run: MakeRun) -> Callable[..., Rate]:
    """``rate(profile, misses, size)``: a rate that loses some of the middle."""

    def make(profile: str, misses: int, size: int | None = 1000) -> Rate:
        answers = {("multikey@8", "middle"): {WRONG: range(misses)}}
        return Rate(judged(make_judged_run(demo, profile=profile, answers=answers), demo), size)

    return make


def test_the_last_that_passes_is_deployed(rate: Callable[..., Rate]) -> None:
    """Two pass, the third is open: the second is deployed, exit 0, and what was not tried is named."""
    found = conclude([rate(MILD, 0, 30), rate(MIDDLE, 2, 20), rate(HARSH, 8, 10)], ["state-rank-1@1.0.0"])

    assert (found.deploy, found.exit_code, found.notices) == ("state-int8@1.0.0", ExitCode.PASS, [])
    assert found.untried == ["state-rank-1@1.0.0"]
    assert [goes_on(one) for one in found.rates] == [True, True, False]
    weakest = found.rates[-1].weakest
    assert weakest is not None
    assert (weakest.cell.band, weakest.k, weakest.n) == ("middle", 92, 100)


@pytest.mark.parametrize(("misses", "code"), [(8, ExitCode.INCONCLUSIVE), (60, ExitCode.BLOCK)])
def test_with_no_pass_it_exits_as_the_mildest(rate: Callable[..., Rate], misses: int, code: ExitCode) -> None:
    """Nothing is deployed, and the code is that of the one verdict there is."""
    found = conclude([rate(MILD, misses)], ["state-int8@1.0.0"])

    assert (found.deploy, found.exit_code) == (None, code)


def test_nothing_is_tried_after_a_failure(rate: Callable[..., Rate]) -> None:
    """A sequence that went on after a rate that did not pass has no promise left."""
    with pytest.raises(AssertionError, match="the first that does not pass"):
        conclude([rate(MILD, 60), rate(MIDDLE, 0)], [])


def test_curves_that_rise_are_flagged(rate: Callable[..., Rate], demo: Policy, make_judged_run: MakeRun) -> None:
    """More recall from fewer bytes, beyond chance, wants a reason; so does a rate that is no more aggressive."""
    low = rate(MILD, 4, 30)
    better = low.verdict.cells[4].model_copy(update={"interval": Interval(0.999, 1.0)})
    high = low.verdict.model_copy(update={"cells": [*low.verdict.cells[:4], better, low.verdict.cells[5]]})
    codes = [notice.code for notice in conclude([low, Rate(high, 30)], []).notices]

    assert codes == ["order", "not-monotone"]
    assert conclude([low, rate(MIDDLE, 0, 20)], []).notices == [], "96 and 100 of 100 are within chance"
    assert conclude([low, rate(MIDDLE, 0, None)], []).notices == []
    empty = Rate(judged(make_judged_run(demo, seeds=1), demo), None)
    assert (empty.verdict.status, empty.weakest) == (Status.ERROR, None)


@pytest.fixture
def few(tmp_path: Path) -> tuple[Path, Path]:
    """A suite of one task, and a policy for five seeds of it."""
    suite = load_suite("smoke").model_dump(mode="json", by_alias=True) | {"name": "few", "tasks": ["multikey@8"]}
    body = load_policy("demo").model_dump(mode="json", by_alias=True)
    rule = body["cells"][0] | {"task": ["multikey@8"], "band": ["front"], "min": 0.5}
    changes = {"name": "few", "suite": "few@1.0.0", "looks": [5], "cells": [rule]}
    paths = tmp_path / "suite.yaml", tmp_path / "policy.yaml"
    for path, document in zip(paths, (suite, body | changes | {"validity": {"floor": None}}), strict=True):
        path.write_text(json.dumps(document))
    return paths


def test_the_command_stops_at_the_first_failure(evalgate: Evalgate, few: tuple[Path, Path], tmp_path: Path) -> None:
    """int8 passes, rank 1 loses eight keys, and int4 after it is not tried."""
    words = ("sweep", few[0], "--model", "builtin:hybrid", "--policy", few[1], "--out", tmp_path / "sweep")
    ended = evalgate(*words, "--profiles", "state-int8, state-rank-1,state-int4", "--json")
    body = json.loads(ended.out)

    assert ended.code == ExitCode.PASS, ended.err
    assert (body["deploy"], body["untried"]) == ("state-int8@1.0.0", ["state-int4@1.0.0"])
    assert [one["verdict"]["status"] for one in body["rates"]] == ["PASS", "INCONCLUSIVE"]
    assert body["rates"][0]["bytes_per_session"] > body["rates"][1]["bytes_per_session"]
    assert (tmp_path / "sweep/state-rank-1@1.0.0/report.html").is_file()
    assert not (tmp_path / "sweep/state-int4@1.0.0").exists()
    assert body["attempts"] == 2
    page = (tmp_path / "sweep/sweep.html").read_text()
    assert "Deploy state-int8@1.0.0." in page
    assert "2 attempts on seed set main; confirm a release on seeds that none of them saw" in page
    again = evalgate(*words, "--profiles", "state-int8,state-rank-1")
    assert "deploy state-int8@1.0.0" in again.out, "a sweep goes on from the runs that it left"


def test_profiles_are_named_once(evalgate: Evalgate, few: tuple[Path, Path], tmp_path: Path) -> None:
    """A name twice is refused before the first token, and so is one that is not known."""
    words = ("sweep", few[0], "--model", "builtin:hybrid", "--policy", few[1], "--out", tmp_path / "sweep")

    assert "given twice" in evalgate(*words, "--profiles", "state-int8,state-int8@1.0.0").err
    assert evalgate(*words, "--profiles", "state-int8,no-such").code == ExitCode.REFUSED
    assert not (tmp_path / "sweep").exists()


def test_the_page_shows_recall_against_bytes(rate: Callable[..., Rate]) -> None:
    """Every rate with its bytes, verdict and weakest cell of each band; the curve, and what was not tried."""
    found = conclude([rate(MILD, 0, 3000), rate(MIDDLE, 2, 2000), rate(HARSH, 60, 1000)], ["state-rank-1@1.0.0"])
    page = render_sweep(sweep_view(found))

    for words in ("Deploy state-int8@1.0.0.", "3,000", "2,000", "1,000", "multikey@8 · 1,024: 40/100", "BLOCK"):
        assert words in page
    assert "Not tried, as the rate before them did not pass: state-rank-1@1.0.0." in page
    assert page.count('class="line layer"') == 3, "a line for each band"
    assert "<script" not in page
    assert render_sweep(sweep_view(found)) == page


def test_without_bytes_there_is_no_curve(rate: Callable[..., Rate]) -> None:
    """One rate, or rates of unknown size, are a table alone."""
    for rates in ([rate(MILD, 0, 3000)], [rate(MILD, 0, None), rate(MIDDLE, 0, None)]):
        assert sweep_view(conclude(rates, [])).curve is None


def test_a_sweep_reads_the_policy_from_a_ref(
    evalgate: Evalgate, few: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar of the change is not the bar that judges it."""
    repository = tmp_path / "repository"
    repository.mkdir()
    policy = repository / "policy.yaml"
    policy.write_text(few[1].read_text())
    as_someone = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*as_someone, "commit", "-qm", "bar"]):
        subprocess.run(["git", *command], cwd=repository, check=True)  # noqa: S607 - whichever git is there
    policy.write_text(json.dumps(json.loads(policy.read_text()) | {"looks": [1]}))
    monkeypatch.chdir(repository)
    words = ("sweep", few[0], "--model", "builtin:hybrid", "--policy", "policy.yaml", "--policy-ref", "HEAD")
    ended = evalgate(*words, "--profiles", "state-int8", "--out", tmp_path / "sweep", "--json")
    (tried,) = json.loads(ended.out)["rates"]

    assert ended.code == ExitCode.PASS, ended.err
    assert (tried["verdict"]["n"], tried["verdict"]["policy_source"]["ref"]) == (5, "HEAD")
