"""Scoring: the whole value at word borders, alone; everything else has a name."""

from __future__ import annotations

import pytest

from evalgate.records import Outcome
from evalgate.tasks.scoring import score
from evalgate.tasks.wanted import SCORERS, ScorerName, Wanted


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


@pytest.mark.parametrize(
    ("scorer", "expected", "answer", "outcome"),
    [
        ("number", "123456, 234567", "234567 and 123456", Outcome.CORRECT),
        ("number", "123456, 234567", "[123456, 234567]\n", Outcome.CORRECT),
        ("number", "123456, 234567", "123,456, 234,567", Outcome.CORRECT),
        ("number", "123456, 234567", "123456", Outcome.WRONG),
        ("number", "123456, 234567", "123456, 234567, 345678", Outcome.WRONG),
        ("number", "123456", "123456입니다.", Outcome.CORRECT),
        ("number", "123456", "番号は123456です", Outcome.CORRECT),
        ("number", "123456", "١٢٣٤٥٦", Outcome.CORRECT),
        ("number", "123456", "So it was, I think.</think> 123456", Outcome.CORRECT),
        ("number", "123456", "111111</think> 123456", Outcome.CORRECT),
        ("number", "123456", "123456 <think>or 111111", Outcome.TRUNCATED),
        ("number", "123456", "123456\nQuestion: what is 111111?", Outcome.CORRECT),
        ("number", "123456", "Question: 123456", Outcome.CORRECT),
        ("count", "3", "3", Outcome.CORRECT),
        ("count", "3", "It was given three times.", Outcome.CORRECT),
        ("count", "2", "twice", Outcome.CORRECT),
        ("count", "3", "세 번 나왔다", Outcome.CORRECT),
        ("count", "3", "three or four", Outcome.WRONG),
        ("count", "3", "three hundred", Outcome.WRONG),
        ("number", "123456", "◁think▷234567◁/think▷123456", Outcome.CORRECT),
        ("number", "123456", "<THINK>234567</THINK>123456", Outcome.CORRECT),
        ("number", "123456", "١٢٣٬٤٥٦", Outcome.CORRECT),
        ("number", "123456", "first: 123456, second: 234567", Outcome.WRONG),
        ("absent", "none", "N/A", Outcome.CORRECT),
        ("absent", "none", "The report does not mention it.", Outcome.CORRECT),
        ("absent", "none", "nonexistent", Outcome.WRONG),
        ("count", "3", "13", Outcome.WRONG),
        ("word", "alpha", "The word is Alpha.", Outcome.CORRECT),
        ("word", "alpha", "alphabet", Outcome.WRONG),
        ("word", "alpha", "alpha or anvil", Outcome.WRONG),
        ("word", "가람", "가람이다.", Outcome.CORRECT),
        ("uuid", "c72b4276-6fcb-4cfe-936a-bf97819e113f", "C72B4276-6FCB-4CFE-936A-BF97819E113F", Outcome.CORRECT),
        ("uuid", "c72b4276-6fcb-4cfe-936a-bf97819e113f", "c72b4276-6fcb-4cfe-936a-bf97819e113", Outcome.WRONG),
        ("key", "amber acorn", "It was the amber acorn.", Outcome.CORRECT),
        ("key", "amber acorn", "the amber apple", Outcome.WRONG),
        ("key", "amber acorn", "amber acorn, bitter anchor", Outcome.WRONG),
        ("key", "용감한 닻", "용감한 닻이었습니다", Outcome.CORRECT),
        ("absent", "none", "None.", Outcome.CORRECT),
        ("absent", "none", "It is not mentioned in the report.", Outcome.CORRECT),
        ("absent", "없음", "없음", Outcome.CORRECT),
        ("absent", "none", "none, or 123456", Outcome.WRONG),
        ("absent", "none", "123456", Outcome.WRONG),
        ("absent", "none", "the amber acorn", Outcome.WRONG),
        ("absent", "none", "", Outcome.EMPTY),
        ("text", '["the second paraphrase", "another"]', "It is another.", Outcome.CORRECT),
        ("text", '["eat a sandwich"]', "Eat a sandwich!", Outcome.CORRECT),
        ("text", '["STAMP PAID"]', "stamp paid", Outcome.CORRECT),
        ("text", '["paid"]', "unpaid", Outcome.WRONG),
        ("text", '["paid"]', " ".join(f"word{i}" for i in range(60)) + " paid", Outcome.WRONG),
    ],
)
def test_each_scorer_wants_all_and_nothing_else(scorer: str, expected: str, answer: str, outcome: Outcome) -> None:
    """Every wanted value, no other of its kind; in any language's digits and particles; free text by any reference."""
    assert score(answer, "stop", expected, scorer) is outcome


@pytest.mark.parametrize("scorer", SCORERS)
def test_what_is_wanted_is_read_back_from_a_trial(scorer: ScorerName) -> None:
    """Several values, with whatever a free text holds."""
    values = ('a "quoted", one', "b\nc") if scorer == "text" else ("123456", "234567")
    wanted = Wanted(scorer, values)

    assert Wanted.read(scorer, str(wanted)) == wanted


def test_an_unknown_scorer_is_an_error() -> None:
    """Never a score."""
    with pytest.raises(ValueError, match="unknown scorer 'f1'"):
        score("1", "stop", "1", "f1")
