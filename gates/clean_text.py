"""Text from runs made safe to show: model answers and names are data, never markup."""

from __future__ import annotations

import re
from itertools import islice

PROSE = ".,:;%/=()"
LINK = re.compile(r"://|www\.", re.IGNORECASE)


def clean(text: str, limit: int = 2000) -> str:
    """Return one line of visible text: white space becomes a blank, what cannot be printed goes, the end is cut.

    Not printed are controls, marks of text direction, surrogates and characters that Unicode has not assigned.
    """
    visible = (" " if char.isspace() else char for char in text if char.isspace() or char.isprintable())
    shown = "".join(islice(visible, limit + 1))
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def markdown_safe(text: str, limit: int = 2000) -> str:
    """Return ``clean`` text in which no character is Markdown or HTML: ASCII punctuation becomes entities.

    Punctuation of prose stays readable in the source, unless the text could be taken for a link.
    """
    visible = clean(text, limit)
    plain = "" if LINK.search(visible) else PROSE
    return "".join(
        f"&#{ord(char)};" if char.isascii() and not char.isalnum() and char != " " and char not in plain else char
        for char in visible
    )
