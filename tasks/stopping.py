"""Where an answer ends that no end token ended: at a stop text, but never at one inside reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evalgate.tasks.reasoning import is_open, spoken_from


class Ended(NamedTuple):
    """An answer's text, and how it ended: ``stop``, ``length`` or ``error``."""

    text: str
    finish_reason: str


def cut(text: str, finish_reason: str, stops: Sequence[str]) -> Ended:
    """``text`` up to the first of ``stops`` after its reasoning and after any blanks that it begins with.

    A stop makes ``stop`` of ``length``: the answer was whole.  Reasoning that is not closed is never cut.
    """
    if finish_reason == "error" or is_open(text):
        return Ended(text, finish_reason)
    begin = spoken_from(text)
    begin += len(text[begin:]) - len(text[begin:].lstrip())
    ends = [at for stop in stops if (at := text.find(stop, begin)) >= 0]
    return Ended(text[: min(ends)], "stop") if ends else Ended(text, finish_reason)
