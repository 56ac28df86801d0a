"""Scoring one answer: a pure function of the answer's text, how it ended, and what was expected.

Right means: the whole value stands in the answer at word borders, and no other value does.
The prompt is never part of what is scored.
"""

from __future__ import annotations

import re
import unicodedata

from evalgate.records import Outcome

SCORER_VERSION = "1"
"""Raised whenever the same answer could be scored otherwise."""

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])\d+(?:[ ,_\u00a0]\d{3})*(?![\w]|\.\d)")
_REFUSAL = re.compile(
    r"\b(?:i (?:cannot|can't|am unable to|am not able to|do not know|don't know)"
    r"|not (?:mentioned|given|stated|specified))\b"
)


def score(answer: str, finish_reason: str, expected: str) -> Outcome:
    """Judge one answer to a question whose value is the number ``expected``.

    ``finish_reason`` is ``stop``, ``length`` or ``error``.  Raises TypeError for anything but text, so that a list
    passed by mistake never becomes a score.
    """
    if not isinstance(answer, str) or not isinstance(expected, str):
        raise TypeError(f"expected texts, found {type(answer).__name__} and {type(expected).__name__}")
    if finish_reason == "error":
        return Outcome.ERROR
    text = _THOUGHT.sub(" ", normalise(answer))
    if finish_reason == "length" or "<think>" in text:
        return Outcome.TRUNCATED
    if not text.strip():
        return Outcome.EMPTY
    found = {re.sub(r"\D", "", number) for number in _NUMBER.findall(text)}
    if found == {expected}:
        return Outcome.CORRECT
    if not found and _REFUSAL.search(text):
        return Outcome.REFUSED
    return Outcome.WRONG


def normalise(text: str) -> str:
    """NFKC, lower case, curly quotes straightened, white space folded."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    return re.sub(r"\s+", " ", text)
