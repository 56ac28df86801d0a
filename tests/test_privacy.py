"""Privacy: nothing goes above its limit, answers are written as the rule says, and scores come before redaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalgate.data_class import DataClass
from evalgate.errors import ExitCode, MismatchError, RefusedError
from evalgate.gates.policy import Privacy
from evalgate.records import Outcome
from evalgate.redaction import NOT_KEPT
from evalgate.runner import Bench, RunRequest, prepare, run_suite
from evalgate.tasks.suite import load_suite

Evalgate = Callable[..., Any]


def suite_of(tmp_path: Path, data_class: str) -> Path:
    """The smoke suite as if its text were of another class."""
    body = load_suite("smoke").model_dump(by_alias=True, mode="json", exclude_unset=True)
    body["haystack"]["data_class"] = data_class
    path = tmp_path / f"{data_class}.yaml"
    path.write_text(yaml.safe_dump(body | {"name": "mine"}), encoding="utf-8")
    return path


def test_classes_are_in_order() -> None:
    """Each class exceeds all before it and none after it, and itself never."""
    order = ["public", "internal", "confidential", "restricted"]

    for i, low in enumerate(order):
        for j, high in enumerate(order):
            assert DataClass(high).exceeds(DataClass(low)) is (j > i)


@pytest.mark.parametrize(
    ("data_class", "limits", "words"),
    [
        ("confidential", {}, "the run folder may hold internal at most"),
        ("restricted", {"store_limit": DataClass.CONFIDENTIAL}, "--store-limit restricted"),
        ("internal", {"store_limit": DataClass.PUBLIC}, "the run folder may hold public"),
        ("internal", {"backend_limit": DataClass.PUBLIC}, "backend native may hold public at most"),
        ("restricted", {"backend_limit": DataClass.PUBLIC}, "--backend-limit restricted and --store-limit restricted"),
        ("internal", {"backend": "served"}, "backend served may hold public"),
    ],
)
def test_nothing_goes_above_a_limit(tmp_path: Path, data_class: str, limits: dict[str, Any], words: str) -> None:
    """A suite above a limit is refused before a model is even opened, and the option that allows it is named."""
    request = RunRequest(suite=str(suite_of(tmp_path, data_class)), model="nowhere", **limits)

    with pytest.raises(RefusedError, match=words):
        prepare(request)


@pytest.mark.parametrize(
    ("data_class", "asked", "rule"),
    [
        ("public", None, "redact"),
        ("internal", None, "redact"),
        ("confidential", None, "drop"),
        ("confidential", "redact", "redact"),
        ("public", "drop", "drop"),
        ("public", "keep", "keep"),
    ],
)
def test_rule_follows_the_class(tmp_path: Path, data_class: str, asked: Any, rule: str) -> None:
    """Without a word of the user, text that is more than internal is not kept at all."""
    suite = suite_of(tmp_path, data_class)
    bench = prepare(
        RunRequest(suite=str(suite), model="builtin:hybrid", answers=asked, days=30, store_limit=DataClass.RESTRICTED)
    )

    assert (bench.text.answers, bench.text.days) == (rule, 30)


@pytest.fixture(scope="module")
def bench() -> Bench:
    """A run of one seed whose model answers as it does."""
    return prepare(RunRequest(suite="smoke", model="builtin:hybrid", seeds=1, seed_set="tests"))


@pytest.mark.parametrize("rule", ["redact", "drop"])
def test_scores_come_before_redaction(bench: Bench, tmp_path: Path, rule: Any) -> None:
    """Outcomes are those of the whole answers: a made-up value stays readable, and dropped text was scored."""
    request = RunRequest(
        suite="smoke", model="builtin:hybrid", seeds=1, seed_set="tests", answers=rule, redact=(r"\d{4}",)
    )
    folder = run_suite(prepare(request), tmp_path / rule)
    trials = folder.trials()
    right = [trial for trial in trials if trial.outcome is Outcome.CORRECT]

    assert folder.manifest().text == bench.text.model_copy(update={"answers": rule})
    assert len(right) >= len(trials) // 2
    if rule == "drop":
        assert {trial.answer for trial in trials} <= {NOT_KEPT, ""}
    else:
        assert all(trial.expected in trial.answer for trial in right)


def test_answers_are_written_as_the_rule_says(bench: Bench) -> None:
    """Redacted, dropped or as they are; an empty answer stays empty, so that it is seen."""
    answer = "4821, ask ada@mail.example.org"
    for rule, written in (("keep", answer), ("redact", "4821, ask [email 1]"), ("drop", NOT_KEPT)):
        changed = dataclasses.replace(bench, text=bench.text.model_copy(update={"answers": rule}))
        assert changed.kept(answer, {"4821"}) == written
        assert changed.kept("", {"4821"}) == ""


def test_a_run_goes_on_under_its_own_rule(bench: Bench, tmp_path: Path) -> None:
    """Answers of one run are all written by one rule."""
    run_suite(bench, tmp_path / "run")
    other = prepare(RunRequest(suite="smoke", model="builtin:hybrid", seeds=1, seed_set="tests", answers="drop"))

    with pytest.raises(MismatchError, match="another rule for answers: found redact, asked for drop"):
        run_suite(other, tmp_path / "run")


@pytest.mark.parametrize(
    ("policy", "asked", "rule"),
    [
        ("keep", None, None),
        ("keep", "keep", "keep"),
        ("redact", None, "redact"),
        ("redact", "keep", "redact"),
        ("redact", "drop", "drop"),
        ("drop", "keep", "drop"),
        ("drop", None, "drop"),
    ],
)
def test_options_can_only_keep_less_than_the_policy(policy: Any, asked: Any, rule: str | None) -> None:
    """What the policy forbids to keep, no option brings back."""
    privacy = Privacy(answers=policy, keep_days=30)

    assert privacy.strictest(asked) == rule
    assert [privacy.shortest(days) for days in (None, 7, 90)] == [30, 7, 30]
    assert Privacy().shortest(None) is None


def test_command_line_refuses(evalgate: Evalgate, tmp_path: Path) -> None:
    """`run` and `check` exit 2 before a token is sent, and make no folder."""
    suite, out = suite_of(tmp_path, "confidential"), tmp_path / "run"
    ended = evalgate("run", suite, "--model", "builtin:hybrid", "--out", out)
    assert ended.code == ExitCode.REFUSED
    assert "--store-limit confidential" in ended.err
    for option in (("--store-limit", "secret"), ("--keep-days", "-1"), ("--redact", "("), ("--answers", "all")):
        assert evalgate("run", "smoke", "--model", "builtin:hybrid", "--out", out, *option).code == ExitCode.REFUSED
    evalgate("policy", "new", "mine", "--suite", suite, "--out", tmp_path / "policy.yaml")
    options = ("--model", "builtin:hybrid", "--policy", tmp_path / "policy.yaml", "--out", out)
    assert evalgate("check", suite, *options).code == ExitCode.REFUSED
    assert not out.exists()


def test_check_keeps_what_the_policy_allows(evalgate: Evalgate, tmp_path: Path) -> None:
    """The policy's rule and days stand in the run of a check, whatever its options ask for."""
    from evalgate.store import RunFolder

    text = evalgate("policy", "new", "mine", "--suite", "smoke").out
    text = text.replace("looks: [100]", "looks: [2]").replace("answers: redact", "answers: drop")
    text = text.replace("keep_days: null", "keep_days: 30")
    (tmp_path / "policy.yaml").write_text(text)
    options = ("--model", "builtin:hybrid", "--policy", tmp_path / "policy.yaml", "--seed-set", "tests")
    evalgate("check", "smoke", *options, "--answers", "keep", "--keep-days", "90", "--out", tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    rule = run.manifest().text

    assert rule is not None
    assert str(rule) == "drop, 30 days"
    assert {trial.answer for trial in run.trials()} <= {NOT_KEPT, ""}
