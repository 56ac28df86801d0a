"""Finding the values of one kind in a text: numbers, counts, code words, identifiers, keys.

Texts come normalised: lower case, ASCII digits.  A value must stand at word borders; a letter of a script that is
written without blanks (Korean, Japanese, Chinese) is a border too, so that particles may follow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from evalgate.tasks.phrases import LANGUAGES

_UNSPACED = "\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u3400-\u9fff\uac00-\ud7af"
_BEFORE, _AFTER = rf"(?<![^\W{_UNSPACED}])", rf"(?![^\W{_UNSPACED}])"
_NUMBER = re.compile(rf"(?<!\.){_BEFORE}(?:\d{{1,3}}(?:[ ,_\u066c]\d{{3}})+|\d+){_AFTER}(?!\.\d)")
_UUID = re.compile(r"(?<![\w-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-z_-])")

_ENGLISH_COUNTS = tuple(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()  # noqa: SIM905 - a list of this length reads better as words
)
_KOREAN_COUNTS = tuple("영 한 두 세 네 다섯 여섯 일곱 여덟 아홉 열 열한 열두 열세 열네 열다섯 열여섯".split())  # noqa: SIM905


def _any(options: Iterable[str]) -> str:
    return "(?:" + "|".join(sorted(map(re.escape, options), key=lambda o: (-len(o), o))) + ")"


_COUNT_ENGLISH = re.compile(rf"\b{_any(_ENGLISH_COUNTS)}\b(?! (?:hundred|thousand|million))|\b(?:once|twice|thrice)\b")
_COUNT_KOREAN = re.compile(rf"(?<!\w)({_any(_KOREAN_COUNTS)}) ?(?:번|개|회|차례)")
_OFTEN = {"once": "1", "twice": "2", "thrice": "3"}


def _borders(language: str, pattern: str) -> str:
    # A Korean word is followed by its particles, and never begins inside another.
    return rf"{_BEFORE}{pattern}{_AFTER}" if language == "en" else rf"(?<!\w){pattern}"


_WORDS = re.compile("|".join(_borders(code, _any(p.code_words)) for code, p in LANGUAGES.items()))
_KEYS = re.compile("|".join(_borders(code, f"{_any(p.adjectives)} {_any(p.nouns)}") for code, p in LANGUAGES.items()))


def numbers(text: str) -> set[str]:
    """Every whole number, without what separates its thousands."""
    return {re.sub(r"\D", "", found) for found in _NUMBER.findall(text)}


def counts(text: str) -> set[str]:
    """Every whole number; in their absence those written in words, up to sixteen."""
    found = numbers(text)
    if found:
        return found
    english = {_OFTEN.get(word) or str(_ENGLISH_COUNTS.index(word)) for word in _COUNT_ENGLISH.findall(text)}
    return english | {str(_KOREAN_COUNTS.index(word)) for word in _COUNT_KOREAN.findall(text)}


def code_words(text: str) -> set[str]:
    """Every code word of any language."""
    return set(_WORDS.findall(text))


def uuids(text: str) -> set[str]:
    """Every identifier in the form of RFC 9562."""
    return set(_UUID.findall(text))


def keys(text: str) -> set[str]:
    """Every adjective and noun that make a key, of any language."""
    return set(_KEYS.findall(text))


def bare(text: str) -> list[str]:
    """Words without punctuation and English articles, as free texts are compared."""
    return [word for word in re.findall(r"\w+", text) if word not in ("a", "an", "the")]


FINDERS: dict[str, Callable[[str], set[str]]] = {
    "number": numbers,
    "count": counts,
    "word": code_words,
    "uuid": uuids,
    "key": keys,
}
