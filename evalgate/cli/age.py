"""How old something may be, as an option says it: ``90m``, ``12h``, ``30d``, ``4w``."""

from __future__ import annotations

import re
from datetime import timedelta

from evalgate.errors import RefusedError

__all__ = ["parse_age"]

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


def parse_age(option: str, text: str) -> timedelta:
    """The age that ``text`` says. Raises RefusedError, which names ``option``."""
    match = re.fullmatch(r"(\d{1,5})([mhdw])", text)
    if match is None:
        raise RefusedError(f"{option} {text!r}: expected a number with m, h, d or w, such as 30d")
    return int(match[1]) * _UNITS[match[2]]
