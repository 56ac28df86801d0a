"""JUnit and Markdown: both say what the exit code says, and carry text from models as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from fixtures_judged import MakeRun, compared, judged
from hypothesis import given
from hypothesis import strategies as st

from evalgate.errors import ExitCode
from evalgate.gates.annotations import MOST, command, commands
from evalgate.gates.clean_text import clean, markdown_safe
from evalgate.gates.junit_xml import junit
from evalgate.gates.markdown import COMMENT_CHARACTERS, MARKER, SUMMARY_BYTES, comment
from evalgate.gates.markdown import summary as markdown
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.verdict import Status, Verdict
from evalgate.records import Outcome

Answers = Mapping[tuple[str, ...], Mapping[Outcome, Any]]
WRONG = Outcome.WRONG

CASES: dict[str, Answers] = {
    "PASS": {},
    "BLOCK": {("middle",): {WRONG: range(30)}},
    "INCONCLUSIVE": {("middle",): {WRONG: range(6)}},
    "ERROR": {("middle",): {Outcome.ERROR: range(10)}},
}


def verdict_of(make_judged_run: MakeRun, answers: Answers, policy: Policy | None = None) -> Verdict:
    """The demo policy's verdict on a compressed run with ``answers``, against a perfect baseline."""
    used = policy or load_policy("demo")
    run = make_judged_run(used, profile="state-int8", answers=answers)
    baseline = make_judged_run(used, run_id="base")
    return compared(run, baseline, used)


def parsed(xml: str) -> ET.Element:
    """The root of a JUnit file."""
    return ET.fromstring(xml)  # noqa: S314 - the file was written a line ago by this process


def counts(xml: str) -> dict[str, int]:
    """Tests, failures, errors and skipped of the file."""
    root = parsed(xml)
    return {name: int(root.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("PASS", {"tests": 6, "failures": 0, "errors": 0, "skipped": 0}),
        ("BLOCK", {"tests": 6, "failures": 2, "errors": 0, "skipped": 0}),
        ("INCONCLUSIVE", {"tests": 6, "failures": 2, "errors": 0, "skipped": 0}),
        ("ERROR", {"tests": 6, "failures": 0, "errors": 6, "skipped": 0}),
    ],
)
def test_junit_has_one_case_per_cell(make_judged_run: MakeRun, word: str, expected: dict[str, int]) -> None:
    """Known PASS, BLOCK, INCONCLUSIVE and ERROR runs give that many failures and errors, of that type."""
    verdict = verdict_of(make_judged_run, CASES[word])
    xml = junit(verdict)

    assert verdict.status == word
    assert counts(xml) == expected
    types = {node.attrib["type"] for node in parsed(xml).iter() if node.tag in {"failure", "error"}}
    assert types == {"PASS": set(), "ERROR": {"too-many-errors"}}.get(word, {word})


@pytest.mark.parametrize("word", list(CASES))
def test_junit_is_red_exactly_when_the_exit_code_is(make_judged_run: MakeRun, word: str) -> None:
    """No file is green beside a failing exit code, nor red beside a passing one."""
    verdict = verdict_of(make_judged_run, CASES[word])
    found = counts(junit(verdict))

    assert (found["failures"] + found["errors"] > 0) == (verdict.exit_code is not ExitCode.PASS)


def test_junit_of_a_policy_that_warns(make_judged_run: MakeRun) -> None:
    """A smoke run that saw no regression exits 0, so its cells are skipped and not failed."""
    policy = load_policy("smoke")
    verdict = judged(make_judged_run(policy), policy)

    assert verdict.exit_code is ExitCode.PASS
    assert counts(junit(verdict)) == {"tests": 9, "failures": 0, "errors": 0, "skipped": 9}


def test_junit_of_a_guard_cell(make_judged_run: MakeRun) -> None:
    """A guard that does not block is fine, though it never passes by itself."""
    body = load_policy("demo").model_dump(mode="json", by_alias=True)
    rule = {"length": [1024], "band": ["front"], "min": 0.90}
    body["cells"] = [{**rule, "task": "single"}, {**rule, "task": "multikey@8", "tier": "guard"}]
    verdict = verdict_of(make_judged_run, {}, Policy.model_validate(body))

    assert verdict.exit_code is ExitCode.PASS
    assert counts(junit(verdict)) == {"tests": 2, "failures": 0, "errors": 0, "skipped": 0}


def test_junit_names_cells_and_lost_answers(make_judged_run: MakeRun) -> None:
    """A failed case has the cell's name, its numbers, and the answers that were lost."""
    root = parsed(junit(verdict_of(make_judged_run, CASES["BLOCK"])))
    case = next(node for node in root.iter("testcase") if node.find("failure") is not None)

    failure, out = case.find("failure"), case.find("system-out")
    assert case.attrib["name"] == "single · 1024 · middle"
    assert failure is not None
    assert failure.attrib["message"].startswith("recalled 70/100; at most 80 blocks at bar 0.90; broke 30 of the 100")
    assert out is not None
    assert out.text is not None
    assert "lost seed 0 at depth 0.500: expected 'amber tower', answered 'wrong'" in out.text


@pytest.mark.parametrize("word", list(CASES))
def test_markdown_says_verdict_reason_and_exit_code(make_judged_run: MakeRun, word: str) -> None:
    """The first lines are the verdict, its reason and the exit code."""
    verdict = verdict_of(make_judged_run, CASES[word])
    text = markdown(verdict)

    assert text.startswith(f"## evalgate: {word}\n\n{word}: ")
    assert f"exit code {int(verdict.exit_code)}." in text


def test_markdown_table_has_counts_and_integers(make_judged_run: MakeRun) -> None:
    """Each cell shows k/n, the exact interval, the bar and the integers; cells that block come first."""
    lines = markdown(verdict_of(make_judged_run, CASES["BLOCK"])).splitlines()
    rows = [line for line in lines if line.startswith("| **")]

    assert len(rows) == 6
    assert rows[0] == (
        "| **BLOCK** | single · 1024 · middle | 70/100 | 0.600 to 0.788 | 0.90 | 96 | 80 | 30 (at most 3) |"
    )
    assert rows[-1].startswith("| **PASS** | multikey&#64;8 · 1024 · back | 100/100 | 0.964 to 1.000 |")


def test_markdown_of_an_invalid_run_shows_no_recall(make_judged_run: MakeRun) -> None:
    """An invalid run shows what failed and no counts that could be read as recall."""
    text = markdown(verdict_of(make_judged_run, CASES["ERROR"]))

    assert "### Not valid" in text
    assert "| <code>errors</code> |" in text
    assert "/100" not in text
    assert "### Cells" not in text


def test_markdown_lists_lost_answers(make_judged_run: MakeRun) -> None:
    """The first lost answers are shown and the rest is counted."""
    text = markdown(verdict_of(make_judged_run, CASES["BLOCK"]))

    assert "this run lost (60)" in text
    assert text.count("| <code>amber tower</code> | <code>wrong</code> |") == 20
    assert "40 more are in the report." in text


HOSTILE = (
    "</code><script>alert(1)</script> | [x](javascript:y) ![i](http://evil.example/p.png) `b` @everyone #1 **x** "
    "www.evil.example \x00\x1b[31m\u202e\ud800 <!-- \r\n# heading\n| a | b |"
)


def hostile_verdict(make_judged_run: MakeRun) -> Verdict:
    """A verdict whose lost answers, expected values and run id are made to break out."""
    policy = load_policy("demo")
    manifest, trials = make_judged_run(policy, profile="state-int8", answers=CASES["BLOCK"], run_id=HOSTILE[:-30])
    trials = [dataclasses.replace(t, answer=HOSTILE if t.outcome == WRONG else t.answer) for t in trials]
    run = manifest, [dataclasses.replace(trial, expected=HOSTILE) for trial in trials]
    return compared(run, make_judged_run(policy, run_id="base"), policy)


def test_answers_are_text_in_markdown(make_judged_run: MakeRun) -> None:
    """Markup, links, mentions, table bars and control characters in an answer stay text on one line."""
    text = markdown(hostile_verdict(make_judged_run))

    body = text.replace("<code>", "").replace("</code>", "")
    for harmful in ("<", "](", "![", "`", "@", "://", "www.", "\x00", "\x1b", "\u202e", "\r"):
        assert harmful not in body
    assert "# heading" not in text
    rows = [line for line in text.splitlines() if line.startswith("| single · 1024 · middle |")]
    assert rows
    assert {row.count("|") for row in rows} == {6}


def test_answers_are_text_in_junit(make_judged_run: MakeRun) -> None:
    """The file parses, whatever control characters and markup an answer holds."""
    root = parsed(junit(hostile_verdict(make_judged_run)))
    outs = [node.text or "" for node in root.iter("system-out")]

    assert any("</code><script>" in out for out in outs)
    assert not any("\x1b" in out for out in outs)


def test_markdown_is_capped(make_judged_run: MakeRun) -> None:
    """A summary of thousands of failing cells stays under 900 KiB, keeps its head, and says what it left out."""
    verdict = verdict_of(make_judged_run, CASES["BLOCK"])
    wide = verdict.model_copy(update={"cells": verdict.cells * 2000})

    text = markdown(wide)

    assert SUMMARY_BYTES - 2000 < len(text.encode()) <= SUMMARY_BYTES
    assert text.startswith("## evalgate: BLOCK\n\nBLOCK: middle of every task")
    assert "more lines are left out" in text


@given(st.text(max_size=300))
def test_clean_text_is_one_visible_line(text: str) -> None:
    """No text makes a second line, a control character or anything that UTF-8 cannot hold."""
    shown = clean(text, limit=50)

    assert len(shown) <= 50
    assert len(shown.splitlines()) <= 1
    assert shown.encode().decode() == shown
    assert all(char.isprintable() or char == " " for char in shown)


@given(st.text(max_size=100))
def test_markdown_safe_has_no_markup(text: str) -> None:
    """Outside entities no character can start markup, and unescaping gives the clean text back."""
    import html

    safe = markdown_safe(text)

    assert not set(safe) & set("<>|`*_[]!~\\@+-{}\"'^$?")
    assert html.unescape(safe) == clean(text)


@pytest.mark.parametrize("cells", [2_000, 20_000])
def test_a_summary_and_a_comment_hold_any_number_of_failing_cells(make_judged_run: MakeRun, cells: int) -> None:
    """Both stay under what GitHub takes, say what they left out, and leave no fold open."""
    found = verdict_of(make_judged_run, CASES["BLOCK"])
    (failing, *_) = [item for item in found.cells if item.status is Status.BLOCK]
    many = [failing.model_copy(update={"cell": failing.cell._replace(length=1024 + i)}) for i in range(cells)]
    found = found.model_copy(update={"cells": many})
    told, said = markdown(found), comment(found)

    assert len(told.encode()) <= SUMMARY_BYTES
    assert len(said) <= COMMENT_CHARACTERS
    assert "are left out; the verdict file and the report have them" in said
    assert ("are left out" in told) == (cells == 20_000)
    for text in (told, said):
        assert text.index("evalgate: BLOCK") < 40
        assert text.count("<details>") == text.count("</details>")


@pytest.mark.parametrize("word", CASES)
def test_a_comment_opens_with_what_decides(make_judged_run: MakeRun, word: str) -> None:
    """Marker, verdict, reason and exit code come first, then the reach; cells that pass are folded away."""
    found = verdict_of(make_judged_run, CASES[word])
    text = comment(found)

    assert text.startswith(f"{MARKER}\n## evalgate: {word}\n\n{markdown_safe(found.reason)}\n")
    assert f"exit code {int(found.exit_code)}." in text
    assert text.count("<details>") == text.count("</details>") == (0 if word == "ERROR" else 1)
    shown, _, folded = text.partition("<details>")
    for item in found.cells if word != "ERROR" else []:
        row = f"| {markdown_safe(str(item.cell))} |"
        assert (row in folded) == (item.status is Status.PASS)
        assert (row in shown.partition("### Answers")[0]) == (item.status is not Status.PASS)
    assert ("### Effective context" in shown) == (word != "ERROR")


def test_annotations_are_the_worst_and_at_most_ten(make_judged_run: MakeRun) -> None:
    """The verdict, then the cells with the lowest recall; a green verdict needs none."""
    found = verdict_of(make_judged_run, CASES["BLOCK"])
    failing = [item for item in found.cells if item.status is Status.BLOCK]
    many = [failing[0].model_copy(update={"k": 90 - i, "reason": f"k {90 - i}"}) for i in range(40)]
    told = commands(found.model_copy(update={"cells": many}))

    assert len(told) == MOST
    assert told[0].startswith("::error title=evalgate BLOCK::")
    assert [line.rpartition("::k ")[2] for line in told[1:]] == [str(k) for k in range(51, 60)]
    assert commands(verdict_of(make_judged_run, {})) == []


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_ends_an_annotation_or_starts_another(title: str, message: str) -> None:
    """One line, one command; colons and commas of a title cannot be taken for its end."""
    line = command("BLOCK", title, message)
    head, _, rest = line.removeprefix("::error title=").partition("::")

    assert len(line.splitlines()) <= 1
    assert "," not in head
    assert ":" not in head
    assert "\r" not in rest
    assert "\n" not in rest


def test_an_undecided_verdict_is_a_warning(make_judged_run: MakeRun) -> None:
    """Red is for what is shown to be bad."""
    assert commands(verdict_of(make_judged_run, CASES["INCONCLUSIVE"]))[0].startswith("::warning ")


def test_many_tasks_leave_room_for_the_cells_that_fail(make_judged_run: MakeRun) -> None:
    """With thousands of tasks, the worst cells still stand above the table of effective contexts."""
    found = verdict_of(make_judged_run, CASES["BLOCK"])
    (failing, *_) = [item for item in found.cells if item.status is Status.BLOCK]
    cells = [failing.model_copy(update={"cell": failing.cell._replace(task=f"task{i}")}) for i in range(5_000)]
    reach = [found.effective_context[0].model_copy(update={"task": f"task{i}"}) for i in range(5_000)]
    found = found.model_copy(update={"cells": cells, "effective_context": reach})

    assert comment(found).count("**BLOCK**") >= 60
    assert markdown(found).count("**BLOCK**") >= 1_000
    assert "4960 more" in comment(found)
