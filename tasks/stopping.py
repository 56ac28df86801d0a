"""Where an answer ends that no end token ended: at a stop text, but never at one inside reasoning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_OPENED = re.compile(r"<(?:think|thinking|reasoning)>")
_CLOSED = re.compile(r"</(?:think|thinking|reasoning)>")


class Ended(NamedTuple):
    """An answer's text, and how it ended: ``stop``, ``length`` or ``error``."""

    text: str
    finish_reason: str


def cut(text: str, finish_reason: str, stops: Sequence[str]) -> Ended:
    """``text`` up to the first of ``stops`` after its reasoning and after any blanks that it begins with.

    A stop makes ``stop`` of ``length``: the answer was whole.  Reasoning that is not closed is never cut.
    """
    begin = _spoken_from(text)
    if finish_reason == "error" or begin is None:
        return Ended(text, finish_reason)
    begin += len(text[begin:]) - len(text[begin:].lstrip())
    ends = [at for stop in stops if (at := text.find(stop, begin)) >= 0]
    return Ended(text[: min(ends)], "stop") if ends else Ended(text, finish_reason)


def _spoken_from(text: str) -> int | None:
    """Where the answer begins: after the last reasoning; None where one was not closed."""
    closed = max((match.end() for match in _CLOSED.finditer(text)), default=0)
    return None if _OPENED.search(text, closed) else closed
