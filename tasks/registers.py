"""Registers of the grammar: what a line of a report, a log, a table, a program or a chat looks like.

Needles stand in lines of the same look as the filler around them, so that their form does not give them away.
Every line starts with a letter and ends with a line break, so that tokenizers split at line ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from evalgate.tasks import names
from evalgate.tasks.draw import Draw
from evalgate.tasks.names import Key
from evalgate.tasks.phrases import Language, Phrases, Slots

RegisterName = Literal["report", "log", "table", "code", "chat", "needles", "noise"]

NOISE: dict[Language, tuple[str, ...]] = {
    "en": ("The rain falls on the roof.", "Leaves drift along the lane.", "Then the wind turns once more."),
    "ko": ("지붕 위로 비가 내린다.", "골목을 따라 잎이 흩날린다.", "그러다 바람이 다시 돌아선다."),
}
"""Three sentences for ever: the easiest haystack, in which anything else stands out."""


class Taken(NamedTuple):
    """What filler may not speak of, or a question would have two answers."""

    keys: frozenset[Key] = frozenset()
    forms: frozenset[int] = frozenset()


class Register(NamedTuple):
    """One look of a text."""

    nouns: dict[Language, str]
    """What the instruction calls it."""
    frame: Callable[[Draw, Phrases, str], str]
    """A sentence as a line."""

    def line(self, draw: Draw, phrases: Phrases, sentence: str) -> str:
        """``sentence`` as one line with its line break."""
        return self.frame(draw, phrases, sentence) + "\n"


def _bare(_: Draw, __: Phrases, sentence: str) -> str:
    return sentence


def _log(draw: Draw, phrases: Phrases, sentence: str) -> str:
    day, hour, minute = 1 + draw.below(28), draw.below(24), draw.below(60)
    level = draw.choice(("INFO", "INFO", "INFO", "WARN", "DEBUG"))
    return f"{level} {day:02d} {hour:02d}:{minute:02d} {draw.choice(phrases.roles)}: {sentence}"


def _table(draw: Draw, phrases: Phrases, sentence: str) -> str:
    return f"row | {draw.choice(phrases.roles)} | {draw.below(100):02d} | {sentence}"


def _code(draw: Draw, _: Phrases, sentence: str) -> str:
    return f"step_{draw.below(100):02d}(x)  # {sentence}"


def _chat(draw: Draw, phrases: Phrases, sentence: str) -> str:
    return f"{draw.choice(phrases.roles)}: {sentence}"


REGISTERS: dict[RegisterName, Register] = {
    "report": Register({"en": "report", "ko": "보고서"}, _bare),
    "log": Register({"en": "log", "ko": "로그"}, _log),
    "table": Register({"en": "table", "ko": "표"}, _table),
    "code": Register({"en": "code", "ko": "프로그램"}, _code),
    "chat": Register({"en": "chat", "ko": "대화"}, _chat),
    "needles": Register({"en": "report", "ko": "보고서"}, _bare),
    "noise": Register({"en": "text", "ko": "글"}, _bare),
}


def filler_sentence(register: RegisterName, language: Language, phrases: Phrases, draw: Draw, taken: Taken) -> str:
    """One sentence of filler; in ``needles`` a fact about a key and of a form that are not ``taken``."""
    if register == "noise":
        return draw.choice(NOISE[language])
    if register != "needles":
        return phrases.filler(draw)
    while (key := Key(draw.below(len(phrases.adjectives)), draw.below(len(phrases.nouns)))) in taken.keys:
        pass
    while (form := draw.below(len(phrases.forms))) in taken.forms:
        pass
    value = names.draw_numbers(draw, 1)[0]
    return phrases.say("fact", Slots(form=form, key=key, value=str(value)))
