"""`evalgate suite|policy|profile new|lint`: what is printed is valid, and what is wrong is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalgate.backends.models import builtin_models
from evalgate.errors import ExitCode
from evalgate.tasks.suite import LIBRARY

Evalgate = Callable[..., Any]

NEW = {"suite": [], "policy": ["--suite", "needle"], "profile": []}


@pytest.mark.parametrize("kind", NEW)
def test_new_documents_pass_their_lint(evalgate: Evalgate, tmp_path: Path, kind: str) -> None:
    """What `new` prints is commented, valid as it stands, and the same as what it writes."""
    path = tmp_path / "deep" / "mine.yaml"
    printed = evalgate(kind, "new", "mine", *NEW[kind])
    written = evalgate(kind, "new", "mine", *NEW[kind], "--out", path, "--json")

    assert printed.code == written.code == ExitCode.PASS
    assert path.read_text() == printed.out == json.loads(written.out)["yaml"]
    assert printed.out.count("#") > 8
    linted = evalgate(kind, "lint", path)
    assert linted.code == ExitCode.PASS
    assert "mine@1.0.0 is valid" in linted.out


@pytest.mark.parametrize("kind", NEW)
def test_new_documents_replace_nothing(evalgate: Evalgate, tmp_path: Path, kind: str) -> None:
    """A file that is there is kept."""
    path = tmp_path / "mine.yaml"
    path.write_text("by hand")

    assert evalgate(kind, "new", "mine", *NEW[kind], "--out", path).code == ExitCode.REFUSED
    assert path.read_text() == "by hand"


@pytest.mark.parametrize("kind", NEW)
@pytest.mark.parametrize("name", ["Mine", "../mine", "", "a b"])
def test_names_are_checked(evalgate: Evalgate, kind: str, name: str) -> None:
    """A name that a library could not hold is refused before anything is written."""
    assert evalgate(kind, "new", name, *NEW[kind]).code == ExitCode.REFUSED


@pytest.mark.parametrize("kind", NEW)
def test_released_documents_pass_their_lint(evalgate: Evalgate, kind: str) -> None:
    """Every document that comes with evalgate passes, and its digest is told."""
    known = {"suite": ["demo", "needle", "smoke"], "policy": ["demo", "smoke"], "profile": ["full", "kv-keep-90"]}
    for name in known[kind]:
        body = json.loads(evalgate(kind, "lint", name, "--json").out)
        assert body[kind] == f"{name}@1.0.0"
        assert len(body["digest"]) == 64


@pytest.mark.parametrize("suite", LIBRARY.names())
@pytest.mark.parametrize("model", builtin_models())
def test_suites_fit_the_embedded_models(evalgate: Evalgate, suite: str, model: str) -> None:
    """With a model the lint measures lines in its tokens, and says what shares a haystack."""
    ended = evalgate("suite", "lint", suite, "--model", f"builtin:{model}", "--json")
    body = json.loads(ended.out)

    assert ended.code == ExitCode.PASS
    assert 8 <= body["fit"]["needle_tokens"] <= (64 if suite == "ruler-13" else 20)
    asked = [entry for stream in body["fit"]["streams"] for entry in stream]
    assert sorted(asked) == sorted({f"{task}·{length}" for task, length, _, _ in body["cells"]})


def test_lines_too_long_for_a_tokenizer_fail_the_lint(evalgate: Evalgate, tiny_models: dict[str, Path]) -> None:
    """In single bytes a needle line takes more than its 20 tokens: refused, as a run would be."""
    ended = evalgate("suite", "lint", "smoke", "--model", tiny_models["hybrid"])

    assert ended.code == ExitCode.REFUSED
    assert re.search(r"a needle line can take \d+ tokens in this tokenizer, expected at most 20", ended.err)
    assert ended.out == ""


def test_lengths_too_short_for_their_needles_fail_the_lint(evalgate: Evalgate, tmp_path: Path) -> None:
    """What a tokenizer decides is checked before anything runs, or said not to be."""
    path = tmp_path / "mine.yaml"
    evalgate("suite", "new", "mine", "--out", path)
    path.write_text(re.sub(r"(?m)^lengths: .*$", "lengths: [300]", path.read_text()))
    told = evalgate("suite", "lint", path)
    refused = evalgate("suite", "lint", path, "--model", "builtin:hybrid")

    assert told.code == ExitCode.PASS
    assert "not checked without --model: that a needle line takes at most 20 tokens, a filler line 16" in told.out
    assert refused.code == ExitCode.REFUSED
    assert "the shortest length that fits" in refused.err


def test_policy_for_a_suite_has_its_cells(evalgate: Evalgate, tmp_path: Path) -> None:
    """A new policy names the suite's tasks, lengths and bands, and judges that version of it."""
    path = tmp_path / "mine.yaml"
    evalgate("policy", "new", "mine", "--suite", "needle", "--out", path)
    body = json.loads(evalgate("policy", "lint", path, "--json").out)

    assert body["rules"][0]["cells"] == 36
    assert "needle@1.0.0" in path.read_text()


def test_power_is_the_published_one(evalgate: Evalgate) -> None:
    """At 100 seeds a bar of .90 passes from 96: a true .99 nearly always, a true .85 hardly ever."""
    (rule,) = json.loads(evalgate("policy", "lint", "demo", "--json").out)["rules"]

    assert (rule["n"], rule["pass_min"]) == (100, 96)
    assert rule["passes"]["0.99"] > 0.99
    assert rule["passes"]["0.85"] < 0.001
    assert rule["blocks"]["0.99"] < 1e-9


def test_bar_that_nothing_reaches_is_refused(evalgate: Evalgate, tmp_path: Path) -> None:
    """A policy under which no outcome could pass is refused, with what to change."""
    path = tmp_path / "mine.yaml"
    evalgate("policy", "new", "mine", "--suite", "demo", "--out", path)
    path.write_text(path.read_text().replace("looks: [100]", "looks: [20]"))
    ended = evalgate("policy", "lint", path)

    assert ended.code == ExitCode.REFUSED
    assert "not even 20/20 shows a recall of 0.9; raise looks" in ended.err


def test_smoke_policy_says_how_little_it_decides(evalgate: Evalgate) -> None:
    """At two seeds no bar decides anything, and the lint says so."""
    assert "its bars decide nothing" in evalgate("policy", "lint", "smoke").out


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("min: 0.90", "min: .nan", "finite"),
        ("min: 0.90", "mim: 0.90", "did you mean min"),
        ("n_guard: 60", "n_guard: 60\nn_guard: 61", "given twice"),
        ("looks: [100]", "looks: [200, 100]", "looks must ascend"),
    ],
)
def test_wrong_policies_are_told(evalgate: Evalgate, tmp_path: Path, old: str, new: str, words: str) -> None:
    """NaN bars, unknown and doubled keys, and looks out of order are refused by name."""
    path = tmp_path / "mine.yaml"
    evalgate("policy", "new", "mine", "--suite", "demo", "--out", path)
    path.write_text(path.read_text().replace(old, new))
    ended = evalgate("policy", "lint", path)

    assert ended.code == ExitCode.REFUSED
    assert words in ended.err


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        ("serving-default", {"PASS": 100, "PASS against a baseline": 200, "BLOCK": 100}),
        ("regulated", {"PASS": 200, "PASS against a baseline": 400, "BLOCK": 200}),
        ("smoke", {"PASS": None, "PASS against a baseline": None, "BLOCK": None}),
    ],
)
def test_lint_says_when_a_verdict_is_first_possible(
    evalgate: Evalgate, policy: str, first: dict[str, int | None]
) -> None:
    """Against a baseline a PASS takes longer: at 100 seeds no number of breaks shows a margin of 3%."""
    (rule,) = json.loads(evalgate("policy", "lint", policy, "--json").out)["rules"]
    said = ", ".join(f"{verdict} {n or 'never'}" for verdict, n in first.items())

    assert rule["first"] == first
    assert said in evalgate("policy", "lint", policy).out


@pytest.mark.parametrize(("pattern", "words"), [("PAT-(", "no regular expression"), ("x*", "matches nothing at all")])
def test_redaction_that_cannot_work_is_told_at_once(
    evalgate: Evalgate, tmp_path: Path, pattern: str, words: str
) -> None:
    """A slip in a pattern is found by the lint, not at the end of a run."""
    path = tmp_path / "mine.yaml"
    evalgate("policy", "new", "mine", "--suite", "demo", "--out", path)
    path.write_text(path.read_text().replace("redact: []", f"redact: ['{pattern}']"))
    ended = evalgate("policy", "lint", path)

    assert ended.code == ExitCode.REFUSED
    assert words in ended.err
    assert "privacy.redact" in ended.err
