"""Small inline SVG drawings: a dot with its interval on a share axis, and the axis above them.

A drawing repeats numbers that stand as text in the same table row, so it is hidden from screen readers.
Colours come from the page's style sheet by class; no drawing carries a style of its own, a script or a link.
"""

from __future__ import annotations

from typing import NamedTuple

from markupsafe import Markup

WIDTH = 220
"""Width of a drawing in user units; the page may scale it."""
MARGIN = 8
ROW_HEIGHT = 22
AXIS_HEIGHT = 18
_STARTS = (0.9, 0.8, 0.5, 0.0)
"""Where a share axis may begin; it always ends at 1."""


class Axis(NamedTuple):
    """A share axis from ``start`` to 1, the same for every row of a report."""

    start: float

    def x(self, share: float) -> float:
        """Place of a share in user units; shares left of the start are held at the edge."""
        inside = max(share, self.start)
        return MARGIN + (WIDTH - 2 * MARGIN) * (inside - self.start) / (1 - self.start)

    @property
    def ticks(self) -> tuple[float, ...]:
        """Five ticks, evenly spaced, first and last at the ends."""
        return tuple(self.start + (1 - self.start) * i / 4 for i in range(5))


class Mark(NamedTuple):
    """One row of the chart, all shares: the observed one, its interval, the bar and the baseline's share."""

    share: float
    lower: float
    upper: float
    bar: float | None
    baseline: float | None
    kind: str
    """Class of the dot: ``pass``, ``block``, ``open`` or ``plain``."""


def axis_for(values: list[float]) -> Axis:
    """The narrowest axis that holds every value with a little room to its left."""
    lowest = min(values, default=0.0)
    return Axis(next((start for start in _STARTS if lowest >= start + 0.01), 0.0))


def axis(scale: Axis) -> Markup:
    """The axis with its tick labels."""
    parts = []
    for i, tick in enumerate(scale.ticks):
        anchor = "start" if i == 0 else "end" if i == 4 else "middle"
        at = {"start": 0.0, "end": float(WIDTH)}.get(anchor, scale.x(tick))
        parts.append(f'<text x="{at:.1f}" y="11" text-anchor="{anchor}">{100 * tick:g}%</text>')
    return _svg(AXIS_HEIGHT, "axis", "".join(parts))


def interval(mark: Mark, scale: Axis) -> Markup:
    """A dot on its interval, a tick at the bar, a ring for the baseline."""
    middle = ROW_HEIGHT / 2
    left, right, dot = scale.x(mark.lower), scale.x(mark.upper), scale.x(mark.share)
    parts = [f'<path class="grid" d="{"".join(f"M{scale.x(t):.1f} 2V{ROW_HEIGHT - 2}" for t in scale.ticks)}"/>']
    if mark.bar is not None:
        parts.append(f'<path class="bar" d="M{scale.x(mark.bar):.1f} 0V{ROW_HEIGHT}"/>')
    parts.append(f'<path class="reach" d="M{left:.1f} {middle:g}H{right:.1f}"/>')
    if mark.baseline is not None:
        parts.append(f'<circle class="base" cx="{scale.x(mark.baseline):.1f}" cy="{middle:g}" r="5.5"/>')
    parts.append(_dot(mark.kind, dot, middle))
    return _svg(ROW_HEIGHT, f"row {mark.kind}", "".join(parts))


def _dot(kind: str, x: float, y: float) -> str:
    """The shape tells the status as well as the colour: dot passes, cross blocks, diamond is open."""
    if kind == "block":
        return f'<path class="dot" d="M{x - 4:.1f} {y - 4:g}l8 8m0 -8l-8 8"/>'
    if kind == "open":
        return f'<path class="dot" d="M{x:.1f} {y - 5:g}l5 5l-5 5l-5 -5z"/>'
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:g}" r="3.5"/>'


def _svg(height: int, name: str, inner: str) -> Markup:
    head = f'<svg class="chart {name}" viewBox="0 0 {WIDTH} {height}" aria-hidden="true" focusable="false">'
    return Markup(f"{head}{inner}</svg>")  # noqa: S704 - numbers and fixed words only, no text from a run
