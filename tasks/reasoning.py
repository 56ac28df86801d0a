"""How reasoning is marked in a model's answer: the tags that open and close it, in the spellings that models use."""

from __future__ import annotations

import re

_NAMES = "(?:think|thinking|thought|reasoning)"
OPENED = re.compile(rf"[<◁]{_NAMES}[>▷]", re.IGNORECASE)
CLOSED = re.compile(rf"[<◁]/{_NAMES}[>▷]", re.IGNORECASE)


def spoken_from(text: str) -> int:
    """Where the answer begins: after the last closed reasoning, also where only the closing tag came back."""
    return max((match.end() for match in CLOSED.finditer(text)), default=0)


def is_open(text: str) -> bool:
    """Whether reasoning began that never ended."""
    return OPENED.search(text, spoken_from(text)) is not None
