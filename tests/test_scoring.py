"""Scoring: the whole value at word borders, alone; everything else has a name."""

from __future__ import annotations

import pytest

from evalgate.records import Outcome
from evalgate.tasks.scoring import score


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("7319", Outcome.CORRECT),
        (" 7319.", Outcome.CORRECT),
        ("The badge number is 7319", Outcome.CORRECT),
        ("It is 7319. Yes, 7319.", Outcome.CORRECT),
        ("**7319**", Outcome.CORRECT),
        ("7,319", Outcome.CORRECT),
        ("\uff17\uff13\uff11\uff19", Outcome.CORRECT),
        ("<think>maybe 1234?</think> 7319", Outcome.CORRECT),
        ("Let me see. The answer is 7319.", Outcome.CORRECT),
        ("", Outcome.EMPTY),
        (" \n\t", Outcome.EMPTY),
        ("<think>7319</think>", Outcome.EMPTY),
        ("73195", Outcome.WRONG),
        ("27319", Outcome.WRONG),
        ("a7319b", Outcome.WRONG),
        ("7319.5", Outcome.WRONG),
        ("73 19", Outcome.WRONG),
        ("7319 1234", Outcome.WRONG),
        ("1234, 7319, 9876", Outcome.WRONG),
        (" ".join(str(n) for n in range(7290, 7340)), Outcome.WRONG),
        ("amber falcon", Outcome.WRONG),
        ("I do not know.", Outcome.REFUSED),
        ("I cannot find it", Outcome.REFUSED),
        ("It is not mentioned in the report.", Outcome.REFUSED),
    ],
)
def test_outcome_of_a_finished_answer(answer: str, outcome: Outcome) -> None:
    """Right only when the value stands whole and alone."""
    assert score(answer, "stop", "7319") is outcome


@pytest.mark.parametrize("answer", ["7319", "", "1234", "The number is 73"])
def test_a_cut_answer_is_truncated(answer: str) -> None:
    """An answer that ran out of tokens is a failure of its own kind, whatever it says."""
    assert score(answer, "length", "7319") is Outcome.TRUNCATED


def test_an_unclosed_thought_is_truncated() -> None:
    """A value inside a thought that never ended is not an answer."""
    assert score("<think> maybe 7319", "stop", "7319") is Outcome.TRUNCATED


def test_a_failed_call_is_an_error() -> None:
    """An error stays an error, even with text beside it."""
    assert score("7319", "error", "7319") is Outcome.ERROR


@pytest.mark.parametrize("wrong", [["7319"], None, 7319, b"7319"], ids=lambda wrong: type(wrong).__name__)
def test_only_text_is_scored(wrong: object) -> None:
    """Another type is an error and never a number."""
    with pytest.raises(TypeError, match="expected texts"):
        score(wrong, "stop", "7319")  # type: ignore[arg-type]  # the fault under test
