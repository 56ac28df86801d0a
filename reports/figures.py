"""How numbers are written in a report: counts, shares, probabilities, bytes.

Nothing here rounds a verdict: a cell is decided on integers, and ``100%`` and ``0%`` are written only when
every trial, or none, is right.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

NONE = "–"
"""What stands where there is no number; unknown is never written as zero."""

_THOUSAND = 1024


def count(n: int | None) -> str:
    """``12,345``, or a dash for an unknown number."""
    return NONE if n is None else f"{n:,}"


def ratio(k: int, n: int) -> str:
    """``k/n`` as digits only, so that it can be searched for; a dash where nothing was counted."""
    return f"{k}/{n}" if n else NONE


def percent(k: int, n: int) -> str:
    """``k/n`` in percent; never rounded up to 100% or down to 0%."""
    if n == 0:
        return NONE
    if k == n:
        return "100%"
    if k == 0:
        return "0%"
    share = f"{100 * k / n:.1f}"
    return {"100.0": "> 99.9", "0.0": "< 0.1"}.get(share, share) + "%"


def share(value: float) -> str:
    """A share that the policy states, with as many digits as it has: ``0.9`` -> ``90%``."""
    return f"{(Decimal(str(value)) * 100).normalize():f}%"


def interval(lower: float, upper: float) -> str:
    """An interval in percent, rounded outwards: ``73.6–82.0%``."""
    tenth = Decimal("0.1")
    low = (Decimal(str(lower)) * 100).quantize(tenth, ROUND_FLOOR)
    high = (Decimal(str(upper)) * 100).quantize(tenth, ROUND_CEILING)
    return f"{_whole(low)}–{_whole(high)}%"


def _whole(value: Decimal) -> str:
    return f"{value:.0f}" if value in {0, 100} else f"{value:.1f}"


def probability(p: float) -> str:
    """A p-value with two significant digits; below one in a million only the bound."""
    if p >= 0.001:
        return f"{p:.3f}"
    return f"{p:.1e}" if p >= 1e-6 else "< 1e-6"


def size(n: int) -> str:
    """Bytes in binary units: ``66.0 KiB``."""
    value, units = float(n), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= _THOUSAND and len(units) > 1:
        value, units = value / _THOUSAND, units[1:]
    return f"{n} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def change(new: int, old: int) -> str:
    """Relative change in percent, with its sign: ``−74.2%``."""
    if old == 0:
        return "same" if new == 0 else "new"
    if new == old:
        return "same"
    text = f"{abs(new - old) / old * 100:.1f}%"
    return ("−" if new < old else "+") + text


def seconds(value: float) -> str:
    """A duration: ``42 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def plural(n: int, one: str, many: str | None = None) -> str:
    """``1 cell``, ``3 cells``."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listing(items: list[str], limit: int = 4) -> str:
    """``a, b and c``; past the limit ``a, b, c, d and 3 more``."""
    if not items:
        return "none"
    if len(items) > limit:
        return f"{', '.join(items[:limit])} and {len(items) - limit} more"
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
