"""Line charts against token position, as inline SVG: a range, one or more lines, each named at its end.

As in `charts`, a drawing repeats numbers that stand as text beside it, and its colours are the style sheet's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup, escape

from evalgate.reports import figures

HEIGHT = 140
LEFT, RIGHT, TOP, BOTTOM = 36, 294, 8, 20
LABEL = 11
"""Least distance of two names at the right edge, in user units."""

Values = Sequence[float | None]


class Line(NamedTuple):
    """One series; a value that is None leaves a gap. ``kind`` is its class in the style sheet."""

    values: Values
    name: str
    kind: str


class Scale(NamedTuple):
    """A value axis with its tick marks (value, words); ``log`` spaces decades evenly."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def y(self, value: float) -> float:
        """Place of a value in user units; values off the axis are held at its edge."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, max(value, self.low)))
        share = min((at - low) / (high - low), 1.0)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)


def linear(values: Values) -> Scale:
    """From 0 to a round number at or above every value, with ticks at round steps."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    unit = 10.0 ** math.floor(math.log10(most))
    step = next(unit * part for part in (0.2, 0.5, 1.0, 2.0, 5.0) if most <= 5 * unit * part)
    steps = math.ceil(most / step - 1e-9)
    return Scale(0.0, steps * step, tuple((n * step, f"{n * step:g}") for n in range(steps + 1)))


def decades(values: Values) -> Scale:
    """Whole powers of ten around every positive value, written in percent."""
    positive = [value for value in values if value]
    low = math.floor(math.log10(min(positive, default=0.01)))
    high = max(math.ceil(math.log10(max(positive, default=1.0))), low + 1)
    return Scale(
        10.0**low, 10.0**high, tuple((10.0**n, f"{10.0 ** (n + 2):g}%") for n in range(low, high + 1)), log=True
    )


def chart(
    positions: Sequence[float],
    lines: Sequence[Line],
    scale: Scale,
    *,
    end: int,
    around: tuple[Values, Values] | None = None,
) -> Markup:
    """Draw ``lines`` over ``positions`` (tokens, from 0 to ``end``) and the range ``around`` (lowest, highest)."""
    xs = [LEFT + (RIGHT - LEFT) * position / end for position in positions]
    parts = [_axes(scale, end)]
    if around is not None:
        low, high = ([(x, scale.y(v)) for x, v in zip(xs, row, strict=True) if v is not None] for row in around)
        parts.append(f'<path class="around" d="{_path([*high, *reversed(low)])}z"/>' if low else "")
    ends = []
    for line in lines:
        points = [(x, scale.y(v)) for x, v in zip(xs, line.values, strict=True) if v is not None]
        if points:
            parts.append(f'<path class="line {line.kind}" d="{_path(points)}"/>')
            ends.append((points[-1][1], line))
    names = zip(_apart([y for y, _ in ends]), (line for _, line in ends), strict=True)
    parts += [
        f'<text class="name {line.kind}" x="{RIGHT + 5}" y="{y + 3.5:.1f}">{escape(line.name)}</text>'
        for y, line in names
    ]
    # Names stand beyond the plot, which has the same size with and without them.
    width = RIGHT + 6 + 6.2 * max((len(line.name) for line in lines), default=0)
    head = f'<svg class="chart curve" viewBox="0 0 {width:.0f} {HEIGHT}" aria-hidden="true" focusable="false">'
    return Markup(f"{head}{''.join(parts)}</svg>")  # noqa: S704 - numbers, fixed words, and names that were escaped


def _axes(scale: Scale, end: int) -> str:
    grid = "".join(f"M{LEFT} {scale.y(value):.1f}H{RIGHT}" for value, _ in scale.ticks)
    marks = "".join(
        f'<text x="{LEFT - 5}" y="{scale.y(value) + 3.5:.1f}" text-anchor="end">{words}</text>'
        for value, words in scale.ticks
    )
    foot = "".join(
        f'<text x="{at:.1f}" y="{HEIGHT - 5}" text-anchor="{anchor}">{figures.count(value)}</text>'
        for at, value, anchor in ((LEFT, 0, "start"), ((LEFT + RIGHT) / 2, end // 2, "middle"), (RIGHT, end, "end"))
    )
    return f'<path class="grid" d="{grid}"/>{marks}{foot}'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _apart(heights: list[float]) -> list[float]:
    """The same places, moved down and then up as little as names need to stand clear of each other."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = list(heights)
    for before, after in pairwise(order):
        placed[after] = max(placed[after], placed[before] + LABEL)
    floor = HEIGHT - BOTTOM + LABEL / 2
    for at in reversed(order):
        placed[at] = min(placed[at], floor)
        floor = placed[at] - LABEL
    return placed
