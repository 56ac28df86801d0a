"""Text from runs made safe to show: model answers and names are data, never markup."""

from __future__ import annotations

import re
import unicodedata

DROPPED = frozenset({"Cc", "Cf", "Cs", "Cn"})
"""Unicode categories that are not shown: controls, formats (text direction), surrogates, noncharacters."""

PROSE = ".,:;%/=()"
LINK = re.compile(r"://|www\.", re.IGNORECASE)


def clean(text: str, limit: int = 2000) -> str:
    """Return one line of visible text: white space becomes a blank, controls go, and the rest is cut at ``limit``."""
    visible = "".join(" " if char.isspace() else char for char in text[: 4 * limit])
    visible = "".join(char for char in visible if unicodedata.category(char) not in DROPPED)
    return visible if len(visible) <= limit else visible[: limit - 1] + "…"


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
