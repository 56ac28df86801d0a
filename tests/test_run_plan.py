"""The plan's estimate: the median of a few real haystacks, within a limit, and told with what it was measured on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalgate.errors import ExitCode
from evalgate.gates.policy import load_policy
from evalgate.gates.power import power
from evalgate.runner import Bench, Plan, RunRequest, make_plan, prepare, probe
from evalgate.runner.probe import LIMIT_S
from evalgate.stats import binom_sf, chances
from evalgate.tasks.suite import load_suite


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A suite of two streams, a long and a short one, on an embedded model."""
    body = load_suite("smoke").model_dump(by_alias=True, mode="json", exclude_unset=True)
    path = tmp_path_factory.mktemp("suite") / "two.yaml"
    fields = {"name": "two", "lengths": [1024, 2048], "tasks": ["single", "multikey@8"]}
    path.write_text(yaml.safe_dump(body | fields), encoding="utf-8")
    return prepare(RunRequest(suite=str(path), model="builtin:hybrid", seeds=10, seed_set="tests"))


@pytest.fixture(scope="module")
def plan(bench: Bench) -> Plan:
    """Its plan: the streams differ in what they cost."""
    plan = make_plan(bench)
    assert plan.streams[0].tokens > 2 * plan.streams[1].tokens
    return plan


def clock(*durations: float) -> Callable[[], float]:
    """A clock by which the haystacks take these seconds, one after another."""

    def ticks() -> Iterator[float]:
        now = 0.0
        for duration in durations:
            yield now
            now += duration
            yield now

    return ticks().__next__


def test_one_disturbed_haystack_does_not_count(bench: Bench, plan: Plan) -> None:
    """The warm-up is not timed, and the median of three is told, whichever of them was slow."""
    longest = max(plan.streams, key=lambda cost: cost.tokens)
    for order in ((7.0, 0.5, 0.6), (0.5, 7.0, 0.6), (0.6, 0.5, 7.0)):
        speed = probe(bench, plan, clock(0.7, *order))

        assert speed.tokens_per_second == pytest.approx(longest.tokens / 0.6)
        assert (speed.haystacks, speed.stream, speed.tokens) == (3, longest.stream, longest.tokens)


@pytest.mark.parametrize(
    ("durations", "haystacks", "told"),
    [
        ((2.0, 2.0, 2.0, 2.0), 3, 2.0),
        ((2.0, 5.0, 4.0), 2, 4.5),
        ((4.0, 3.0, 3.0), 2, 3.0),
        ((60.0,), 1, 60.0),
        ((9.0,), 1, 9.0),
    ],
    ids=str,
)
def test_slow_models_are_probed_within_the_limit(
    bench: Bench, plan: Plan, durations: tuple[float, ...], haystacks: int, told: float
) -> None:
    """What is slow is timed on the short stream and less often; what is very slow, on the warm-up alone."""
    shortest = min(plan.streams, key=lambda cost: cost.tokens)
    speed = probe(bench, plan, clock(*durations))

    assert (speed.haystacks, speed.stream) == (haystacks, shortest.stream)
    assert speed.tokens_per_second == pytest.approx(shortest.tokens / told)
    assert speed.seconds == pytest.approx(sum(durations))
    assert sum(durations[:-1]) <= LIMIT_S


def test_estimate_is_in_the_tokens_of_the_plan(bench: Bench, plan: Plan) -> None:
    """A machine on which every token takes a millisecond takes a second for each thousand planned tokens."""
    longest = max(plan.streams, key=lambda cost: cost.tokens)
    speed = probe(bench, plan, clock(0.1, *[longest.tokens / 1000] * 3))

    assert plan.seconds is None
    assert replace(plan, speed=speed).seconds == pytest.approx(plan.tokens / 1000)


def test_estimate_says_what_it_was_measured_on(evalgate: Callable[..., Any]) -> None:
    """The printed line calls itself an estimate and names haystacks, stream and tokens."""
    ended = evalgate("run", "smoke", "--model", "builtin:hybrid", "--seeds", "2", "--plan")

    told = r"estimate: \d+ s at [\d,]+ tokens/s \(the median of \d haystacks? of stream \d, 1,\d\d\d tokens each"
    assert re.search(told, ended.out)


def test_a_given_rate_and_recalls_are_reckoned_with(evalgate: Callable[..., Any]) -> None:
    """Nothing is measured; the chances are those of the recalls that were asked, and the window is the model's."""
    words = ("run", "smoke", "--model", "builtin:hybrid", "--seeds", "2", "--plan", "--rate", "1000")
    body = json.loads(evalgate(*words, "--policy", "smoke", "--recall", "0.97", "--recall", "0.5", "--json").out)
    told = evalgate(*words).out

    assert body["seconds"] == pytest.approx(body["tokens"] / 1000)
    assert body["forks_per_seed"] == body["cells"] == 9
    assert body["window"] == 1_048_576
    assert body["longest"] == 1024
    assert body["speed"] is None
    assert set(body["power"][0]["passes"]) == {"0.97", "0.5"}
    assert "s at the given 1,000 tokens/s" in told
    for more, said in (
        (("--rate", "0"), "expected tokens per second"),
        (("--recall", "0.9"), "name it as --policy"),
        (("--policy", "smoke", "--recall", "1.5"), "expected a share"),
    ):
        ended = evalgate(*words[:-2], *more)
        assert ended.code == ExitCode.REFUSED
        assert said in ended.err
    assert "go with --plan" in evalgate(*words[:6], "--rate", "5", "--out", "x").err


def test_the_smallest_drop_is_one_that_is_detected() -> None:
    """Four times in five at it, less often above it; against a baseline by the binomial tail of lost answers."""
    for row in power(load_policy("serving-default")):
        assert row.detected is not None
        assert row.detected_lost is not None
        assert row.breaks_at[-1] is not None
        for recall, often in ((row.detected, True), (row.detected + 0.001, False)):
            assert (chances(row.looks, row.pass_at, row.block_at, recall).blocks >= 0.8) == often
        for lost, often in ((row.detected_lost, True), (row.detected_lost - 0.001, False)):
            assert (binom_sf(row.breaks_at[-1] + 1, row.n, lost) >= 0.8) == often


def test_twelve_tasks_at_six_lengths_cost_a_twentieth(tmp_path: Path) -> None:
    """Prefilled once and asked everything, against one prompt per trial."""
    body = load_suite("needle").model_dump(by_alias=True, mode="json", exclude_unset=True)
    rungs = ["single", *(f"multikey@{k}" for k in (3, 4, 6, 8, 16)), *(f"overwrite@{k}" for k in (2, 3, 4, 5, 6, 8))]
    path = tmp_path / "wide.yaml"
    lengths = [4096 * 2**i for i in range(6)]
    path.write_text(yaml.safe_dump(body | {"name": "wide", "lengths": lengths, "tasks": rungs}), encoding="utf-8")
    plan = make_plan(prepare(RunRequest(suite=str(path), model="builtin:hybrid", seeds=100, seed_set="tests")))

    assert (plan.cells, plan.trials) == (216, 21600)
    assert plan.saving >= 20
