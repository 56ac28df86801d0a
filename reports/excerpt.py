"""How text that nobody vouches for (answers, names, hardware strings) is written so that it is inert.

Markup is the template engine's business (it escapes everything); this module makes the *characters* harmless:
control, direction-changing and invisible ones are written as their code point, and length is capped.
"""

from __future__ import annotations

import re

from markupsafe import Markup

LIMIT = 200
"""Most characters shown of one answer."""

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 controls, tab and line feed apart
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # direction changes and invisible marks
    "\ud800-\udfff\ufdd0-\ufdef\ufff9-\ufffb\ufffe\uffff"  # lone surrogates, non-characters, annotations
    "\U000e0000-\U000e007f"  # tag characters: text that no reader sees
    "]"
)


def visible(text: str) -> str:
    """Write every control, direction-changing or invisible character as ``‹U+202E›``."""
    return _UNSAFE.sub(lambda match: f"‹U+{ord(match[0]):04X}›", text)


def excerpt(text: str, limit: int = LIMIT) -> str:
    """The first ``limit`` characters of an answer on one line, and how many were left out."""
    if not text:
        return "(empty)"
    rest = len(text) - limit
    head = text[:limit].replace("\n", "⏎").replace("\t", "⇥")
    return visible(head) + (f"… (+{rest:,} characters)" if rest > 0 else "")


def inert(value: object) -> object:
    """Jinja's ``finalize``: every string that a template prints is made visible before it is escaped."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def slug(text: str) -> str:
    """``multikey@8`` -> ``multikey-8``: a part of an id."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
