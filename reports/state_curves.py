"""One layer's state against position: charts, the numbers under them, and what is left of what was written where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from evalgate.reports import figures, measures
from evalgate.reports.curves import Line, Scale, Values, chart, linear
from evalgate.state_record import LayerState, StateRecord


class Kept(NamedTuple):
    """Mean share that is left at the end of what the stretches of each third wrote; None for a third without any."""

    front: float | None
    middle: float | None
    back: float | None


class Chart(NamedTuple):
    """A drawing and the words over it."""

    title: str
    drawing: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRow:
    """A layer after so many tokens; ranges are over its heads."""

    tokens: str
    norm: str
    rank: str
    ranks: str
    saturation: str
    saturations: str
    kept: str
    """Of the stretch that ends here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePanel:
    """Everything about one layer against position."""

    title: str
    anchor: str
    charts: tuple[Chart, ...]
    rows: tuple[PositionRow, ...]


def kept_by_third(kept: Values, positions: Sequence[int]) -> Kept:
    """Means over the stretches whose middle lies in each third of the stream."""
    found: tuple[list[float], ...] = ([], [], [])
    for (start, end), share in zip(pairwise([0, *positions]), kept, strict=True):
        if share is not None:
            found[min(3 * (start + end) // (2 * positions[-1]), 2)].append(share)
    return Kept(*(sum(shares) / len(shares) if shares else None for shares in found))


def curve_panel(layer: LayerState, record: StateRecord) -> CurvePanel:
    """Draw and write one layer."""
    end, ends = record.positions[-1], [float(position) for position in record.positions]
    middles = [(a + b) / 2 for a, b in pairwise([0, *record.positions])]
    heads = [head.curve for head in layer.heads]
    full = float(min(record.key_width, record.value_width))

    def drawn(title: str, over: Sequence[float], own: Values, of_heads: Sequence[Values], top: float | None) -> Chart:
        around = [_extremes(column) for column in zip(*of_heads, strict=True)]
        low, high = ([pair[i] for pair in around] for i in (0, 1))
        scale: Scale = linear([*high, *own, top])
        return Chart(title, chart(over, [Line(own, "", "layer")], scale, end=end, around=(low, high)))

    return CurvePanel(
        title=f"layer {layer.layer}",
        anchor=f"curves-{layer.layer}",
        charts=(
            drawn("Norm", ends, layer.curve.norm, [head.norm for head in heads], None),
            drawn(
                f"Effective rank, of {full:g}",
                ends,
                layer.curve.effective_rank,
                [h.effective_rank for h in heads],
                None,
            ),
            drawn("Saturation", ends, layer.curve.saturation, [head.saturation for head in heads], 1.0),
            drawn("Left at the end, by where it was written", middles, layer.kept, [h.kept for h in layer.heads], 1.0),
        ),
        rows=tuple(_row(layer, at, position) for at, position in enumerate(record.positions)),
    )


def _extremes(column: Values) -> tuple[float | None, float | None]:
    known = [value for value in column if value is not None]
    return (min(known), max(known)) if known else (None, None)


def _row(layer: LayerState, at: int, position: int) -> PositionRow:
    heads = [head.curve for head in layer.heads]
    return PositionRow(
        tokens=figures.count(position),
        norm=measures.significant(layer.curve.norm[at]),
        rank=f"{layer.curve.effective_rank[at]:.1f}",
        ranks=measures.extent((head.effective_rank[at] for head in heads), "{:.1f}".format),
        saturation=measures.extent([layer.curve.saturation[at]], "{:.2f}".format),
        saturations=measures.extent((head.saturation[at] for head in heads), "{:.2f}".format),
        kept=measures.share(layer.kept[at]),
    )
