"""How measured quantities are written: shares, extents and significant digits.

`figures` writes counts, of which nothing may be lost by rounding; a measurement has as many digits as it deserves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evalgate.reports.figures import NONE


def share(value: float | None) -> str:
    """A measured share in percent with two significant digits, whole from 10% on: ``48%``, ``2.0%``."""
    if value is None:
        return NONE
    return f"{100 * value:.0f}%" if value >= 0.0995 or value == 0 else f"{100 * value:#.2g}%"


def extent(values: Iterable[float | None], write: Callable[[float], str]) -> str:
    """The least and the most of some numbers, ``7.0–14.8`` or ``13–51%``; one of them where they are written alike."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return NONE
    least, most = write(known[0]), write(known[-1])
    if least == most:
        return least
    return f"{least.removesuffix('%') if most.endswith('%') else least}–{most}"


def side_by_side(parts: Iterable[str]) -> str:
    """``69% / 20% / 5%``; a line may break after a stroke, never before it."""
    return "\u00a0/ ".join(parts)


def significant(value: float) -> str:
    """Three significant digits: ``8.68``, ``10.0``, ``109``."""
    return f"{value:#.3g}".rstrip(".")
