"""Scoring one answer: a pure function of the answer's text, how it ended, and what was wanted.

Right means: every wanted value stands in the answer at word borders, and no other value of its kind does.
The prompt, and whatever a template puts before the answer, is never part of what is scored.
"""

from __future__ import annotations

import re
import unicodedata

from evalgate.records import Outcome
from evalgate.tasks.finding import FINDERS, bare
from evalgate.tasks.plugins import plugin
from evalgate.tasks.reasoning import is_open, spoken_from
from evalgate.tasks.wanted import Wanted

SCORER_VERSION = "2"
"""Raised whenever the same answer could be scored otherwise."""

_NEXT_TURN = re.compile(r"\n\s*(?:question|q|질문)\s*:.*", re.DOTALL)
_REFUSAL = re.compile(
    r"\b(?:i (?:cannot|can't|am unable to|am not able to|do not know|don't know)"
    r"|not (?:mentioned|given|stated|specified|found|provided|listed|available|present|there|in the)"
    r"|(?:does not|doesn't) (?:say|mention|give|state|appear|exist)"
    r"|no (?:such|information|mention|number|record)|none|nothing|unknown|n/a)(?!\w)"
    r"|없음|없다|없습니다|나오지 않"
)
SPARE_WORDS = 30
"""Words that a free text may have beside the wanted one: an answer that says everything says nothing."""


def score(answer: str, finish_reason: str, expected: str, scorer: str = "number") -> Outcome:
    """Judge one answer by ``scorer`` (see :mod:`~evalgate.tasks.wanted`) against ``expected`` as a trial records it.

    ``finish_reason`` is ``stop``, ``length`` or ``error``.  Raises TypeError for anything but text, so that a list
    passed by mistake never becomes a score, and ValueError for an unknown scorer.
    """
    if not isinstance(answer, str) or not isinstance(expected, str):
        raise TypeError(f"expected texts, found {type(answer).__name__} and {type(expected).__name__}")
    wanted = Wanted.read(scorer, expected)
    if finish_reason == "error":
        return Outcome.ERROR
    text = spoken(answer)
    if finish_reason == "length" or is_open(text):
        return Outcome.TRUNCATED
    if not text.strip():
        return Outcome.EMPTY
    if _right(text, wanted):
        return Outcome.CORRECT
    silent = wanted.scorer in FINDERS and not FINDERS[wanted.scorer](text)
    return Outcome.REFUSED if silent and wanted.scorer != "absent" and _REFUSAL.search(text) else Outcome.WRONG


def spoken(answer: str) -> str:
    """What is left to judge: normalised, without closed reasoning, up to a next turn that the model made up."""
    text = normalise(answer, lines=True)
    return _folded(_NEXT_TURN.sub("", text[spoken_from(text) :]))


def normalise(text: str, *, lines: bool = False) -> str:
    """NFKC, lower case, ASCII digits, curly quotes straightened, white space folded (``lines``: line breaks stay)."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    return text if lines else _folded(text)


def _folded(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _right(text: str, wanted: Wanted) -> bool:
    if wanted.scorer == "absent":
        return not FINDERS["number"](text) and _REFUSAL.search(text) is not None
    if wanted.scorer == "text":
        return any(_says(text, reference) for reference in wanted.values)
    if wanted.scorer not in FINDERS:
        own = plugin("scorers", wanted.scorer)
        assert own is not None, "checked as it was read"
        return own.value(text, wanted.values) is True
    return FINDERS[wanted.scorer](text) == {normalise(value) for value in wanted.values}


def _says(text: str, reference: str) -> bool:
    said, asked = bare(text), bare(normalise(reference))
    if not asked or len(said) > len(asked) + SPARE_WORDS:
        return False
    return any(said[at : at + len(asked)] == asked for at in range(len(said)))
