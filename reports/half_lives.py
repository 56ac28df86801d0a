"""Half-lives of a head's channels: their spread in words, how many outlive a context, and a small histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from evalgate.reports import measures
from evalgate.reports.charts import MARGIN, WIDTH

HORIZONS = ((1024, "1k"), (8192, "8k"), (131_072, "128k"))
"""Context lengths in tokens that a channel may outlive: at least half of it is left after so many."""

BINS = 21
"""[1, 2), [2, 4) ... [512k, 1M), and everything from 1M tokens on."""
HEIGHT = 46
AXIS_HEIGHT = 18
_TICKS = ((1, "1"), (32, "32"), *HORIZONS, (2 ** (BINS - 1), "1M+"))

HalfLives = Sequence[float | None]
"""In tokens; None for a channel that does not decay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Half-lives of some channels, ready to print."""

    low: str
    """Of the tenth of the channels that forgets fastest, the longest."""
    median: str
    high: str
    outlive: str
    """Share of the channels that outlive each horizon: ``69% / 20% / 5%``."""


def spread(values: HalfLives) -> Spread:
    """Sum the half-lives of one head or of a layer up."""
    ordered = sorted(math.inf if value is None else value for value in values)
    low, median, high = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.1, 0.5, 0.9))
    return Spread(low=tokens(low), median=tokens(median), high=tokens(high), outlive=outlive(ordered))


def outlive(values: HalfLives) -> str:
    """Share of ``values`` that are at least each horizon: ``69% / 20% / 5%``."""
    lasting = [math.inf if value is None else value for value in values]
    return measures.side_by_side(_percent(sum(v >= least for v in lasting), len(lasting)) for least, _ in HORIZONS)


def _percent(k: int, n: int) -> str:
    """Whole percent; all and none are written only where they are meant."""
    return f"{min(max(round(100 * k / n), 1), 99) if 0 < k < n else 100 * k // n}%"


def tokens(value: float) -> str:
    """A half-life in words: ``1.3``, ``5,382``, ``1.6 M``, ``no decay``."""
    if math.isinf(value):
        return "no decay"
    if value < 99.5:
        return f"{value:.1f}"
    if value < 999_500:
        return f"{value:,.0f}"
    return f"{value / 1e6:,.1f} M" if value < 1e9 else "over 1,000 M"


def bin_of(value: float | None) -> int:
    """Bin of a half-life: the power of two at or below it, the last one open."""
    return BINS - 1 if value is None else min(int(math.log2(max(value, 1.0))), BINS - 1)


def counts(values: HalfLives) -> list[int]:
    """Channels in each bin."""
    found = [0] * BINS
    for value in values:
        found[bin_of(value)] += 1
    return found


def histogram(rest: HalfLives, seen: HalfLives, top: int) -> Markup:
    """Bars for the half-lives on the haystack, a stepped line for those at rest; ``top`` channels fill the height."""
    grid = "".join(f"M{_x(math.log2(least)):.1f} 0V{HEIGHT}" for least, _ in HORIZONS)
    bars = "".join(
        f"M{_x(at) + 1:.1f} {HEIGHT}V{_y(n, top):.1f}H{_x(at + 1) - 1:.1f}V{HEIGHT}z"
        for at, n in enumerate(counts(seen))
        if n
    )
    line, right = "", 0
    for n, bins in groupby(counts(rest)):
        right += len(list(bins))
        line += f"V{_y(n, top):.1f}H{_x(right):.1f}"
    return _svg(
        HEIGHT,
        "hist",
        f'<path class="grid" d="{grid}"/><path class="bars" d="{bars}"/>'
        f'<path class="rest" d="M{_x(0):.1f} {HEIGHT}{line}V{HEIGHT}"/>',
    )


def axis() -> Markup:
    """The axis of every histogram, in tokens."""
    parts = []
    for least, label in _TICKS:
        at = _x(math.log2(least))
        anchor = "start" if least == 1 else "end" if label.endswith("+") else "middle"
        place = 0.0 if least == 1 else WIDTH if label.endswith("+") else at
        parts.append(f'<text x="{place:.1f}" y="11" text-anchor="{anchor}">{label}</text>')
    return _svg(AXIS_HEIGHT, "axis", "".join(parts))


def _x(power: float) -> float:
    return MARGIN + (WIDTH - 2 * MARGIN) * power / BINS


def _y(n: int, top: int) -> float:
    return HEIGHT - (HEIGHT - 2) * n / top


def _svg(height: int, name: str, inner: str) -> Markup:
    head = f'<svg class="chart {name}" viewBox="0 0 {WIDTH} {height}" aria-hidden="true" focusable="false">'
    return Markup(f"{head}{inner}</svg>")  # noqa: S704 - numbers and fixed words only
