"""Effective context: every shorter length must pass too, in every band, and what is not shown is not claimed."""

from __future__ import annotations

import pytest
from fixtures_judged import MakeRun, changed, judged

from evalgate.gates.effective_context import effective_contexts
from evalgate.gates.junit_xml import junit
from evalgate.gates.markdown import comment, summary
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.verdict import Status, Verdict
from evalgate.records import Outcome
from evalgate.reports.terminal import summary as terminal

Lost = dict[tuple[str | int, ...], range]
BLOCKED, OPEN = range(30), range(6)


@pytest.fixture(scope="module")
def ladder() -> Policy:
    """One look at 100 seeds over lengths 1,024 to 8,192."""
    needle = load_policy("serving-default")
    cells = [
        {"task": ["single", "multikey@8"], "length": [1024, 2048, 4096, 8192], "band": ["front", "middle", "back"]}
    ]
    return changed(
        needle, looks=[100], cells=[cell | {"arm": "default", "min": 0.9, "tier": "primary"} for cell in cells]
    )


def verdict_of(make: MakeRun, policy: Policy, lost: Lost) -> Verdict:
    """The verdict on a run that gets ``lost`` wrong."""
    answers = {cell: {Outcome.WRONG: seeds} for cell, seeds in lost.items()}
    return judged(make(policy, profile="state-int8", answers=answers), policy)


@pytest.mark.parametrize(
    ("lost", "words", "tokens", "blocked_at"),
    [
        ({}, "at least 8,192 tokens", 8192, None),
        ({(8192, "middle"): BLOCKED}, "4,096 tokens", 4096, 8192),
        ({(8192, "middle"): OPEN}, "4,096 tokens", 4096, None),
        ({(2048, "back"): BLOCKED}, "1,024 tokens", 1024, 2048),
        ({(1024, "front"): BLOCKED}, "none", None, 1024),
        ({(1024, "front"): OPEN}, "none shown", None, None),
        ({(1024,): range(100)}, "none", None, 1024),
        ({(4096, "front"): OPEN, (8192,): BLOCKED}, "2,048 tokens", 2048, None),
    ],
    ids=["all", "last-blocks", "last-open", "hole", "first-blocks", "first-open", "nothing-right", "open-before-block"],
)
def test_it_ends_at_the_first_length_that_is_not_shown(
    make_judged_run: MakeRun, ladder: Policy, lost: Lost, words: str, tokens: int | None, blocked_at: int | None
) -> None:
    """Whatever passes again further on does not count."""
    found = verdict_of(make_judged_run, ladder, {("single", *cell): seeds for cell, seeds in lost.items()})
    single, multikey = found.effective_context

    assert (single.task, single.tokens, single.blocked_at, str(single)) == ("single", tokens, blocked_at, words)
    assert str(multikey) == "at least 8,192 tokens"


def test_a_length_without_one_of_the_bands_is_not_shown(make_judged_run: MakeRun, ladder: Policy) -> None:
    """A band that no bar speaks of there is not known to pass."""
    found = verdict_of(make_judged_run, ladder, {})
    gap = [item for item in found.cells if (item.cell.length, item.cell.band) != (4096, "middle")]

    assert [one.tokens for one in effective_contexts(gap)] == [2048, 2048]


def test_guard_cells_have_no_say(make_judged_run: MakeRun, ladder: Policy) -> None:
    """A task that is only guarded is not claimed to reach anywhere."""
    cells = [cell.model_dump(mode="json") for cell in ladder.cells]
    split = [
        cells[0] | {"task": ["single"]},
        cells[0] | {"task": ["multikey@8"], "tier": "guard"},
    ]
    found = verdict_of(make_judged_run, changed(ladder, cells=split), {})

    assert [(one.task, one.tokens) for one in found.effective_context] == [("single", 8192)]


def test_an_invalid_run_reaches_nowhere(make_judged_run: MakeRun, ladder: Policy) -> None:
    """Nothing is claimed of a run that is not judged."""
    found = judged(make_judged_run(ladder, answers={("single",): {Outcome.ERROR: range(50)}}), ladder)

    assert found.effective_context == []


def test_every_output_says_it(make_judged_run: MakeRun, ladder: Policy) -> None:
    """JSON, JUnit, summary and comment name each task's effective context in the same words."""
    found = verdict_of(make_judged_run, ladder, {("single", 8192, "middle"): BLOCKED})

    assert '"tokens":4096' in found.model_dump_json()
    for text in (junit(found), summary(found), comment(found)):
        assert "4,096 tokens" in text
        assert "at least 8,192 tokens" in text


def test_the_terminal_says_it(make_judged_run: MakeRun, ladder: Policy) -> None:
    """In one line above the verdict."""
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as capture:
        console.print(terminal(verdict_of(make_judged_run, ladder, {("single", 8192, "middle"): BLOCKED})))

    assert "effective context: single 4,096 tokens, multikey@8 at least 8,192 tokens" in capture.get()


def test_a_band_that_was_asked_and_has_no_bar_is_not_claimed(make_judged_run: MakeRun, ladder: Policy) -> None:
    """The policy judges front and back; the middle of the run may be anything, so no length is shown."""
    whole = make_judged_run(ladder, profile="state-int8")
    cells = [cell.model_dump(mode="json") | {"band": ["front", "back"]} for cell in ladder.cells]
    found = judged(whole, changed(ladder, cells=cells))

    assert found.status is Status.PASS
    assert [str(one) for one in found.effective_context] == ["none shown", "none shown"]


def test_a_guard_that_blocks_ends_it(make_judged_run: MakeRun, ladder: Policy) -> None:
    """A guard cell shows no pass, but what it shows to fail is not reached."""
    (cell,) = [cell.model_dump(mode="json") for cell in ladder.cells]
    split = [cell | {"length": [1024, 2048]}, cell | {"length": [4096], "tier": "guard"}]
    policy = changed(ladder, cells=split)
    run = make_judged_run(
        policy, profile="state-int8", answers={("single", 4096, "middle"): {Outcome.WRONG: range(60)}}
    )
    single, multikey = judged(run, policy).effective_context

    assert (single.tokens, single.blocked_at, str(single)) == (2048, 4096, "2,048 tokens")
    assert multikey.tokens == 2048
