"""What each profile's codec makes of the state: one row a profile, one panel a layer."""

from __future__ import annotations

from dataclasses import dataclass

from evalgate.reports import figures, measures
from evalgate.reports.curves import Line, chart, decades, linear
from evalgate.reports.state_curves import Chart
from evalgate.state_record import CodecLayer, CodecState, Curve, StateRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecRow:
    """One profile over all layers, at the end of the stream; ranges are over layers."""

    name: str
    form: str
    nbytes: str
    share: str
    """Of the bytes of the uncompressed state."""
    once: str
    held: str
    worst: str
    """Largest held error of any head."""
    rank: str
    saturation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecLayerRow:
    """One profile in one layer; the first row of a panel is the state as it is, without errors."""

    name: str
    once: str
    held: str
    worst: str
    norm: str
    rank: str
    saturation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecPanel:
    """One layer under every profile."""

    title: str
    anchor: str
    charts: tuple[Chart, ...]
    rows: tuple[CodecLayerRow, ...]


def codec_rows(record: StateRecord) -> tuple[CodecRow, ...]:
    """One row for each profile, in the record's order."""
    return tuple(_row(codec, record.nbytes) for codec in record.codecs)


def codec_panels(record: StateRecord) -> tuple[CodecPanel, ...]:
    """One panel for each layer; none where no profile was measured."""
    return tuple(_panel(record, at) for at in range(len(record.layers))) if record.codecs else ()


def _row(codec: CodecState, whole: int) -> CodecRow:
    layers = codec.layers
    return CodecRow(
        name=codec.profile.name,
        form=codec.form,
        nbytes=figures.size(codec.nbytes),
        share=measures.share(codec.nbytes / whole),
        once=measures.extent((layer.once[-1] for layer in layers), measures.share),
        held=measures.extent((layer.held[-1] for layer in layers), measures.share),
        worst=measures.share(max(layer.worst_head for layer in layers)),
        rank=measures.extent((layer.curve.effective_rank[-1] for layer in layers), "{:.1f}".format),
        saturation=measures.extent((layer.curve.saturation[-1] for layer in layers), "{:.2f}".format),
    )


def _panel(record: StateRecord, at: int) -> CodecPanel:
    plain = record.layers[at]
    under = [(codec, codec.layers[at]) for codec in record.codecs]
    end, positions = record.positions[-1], [float(position) for position in record.positions]
    errors = [Line(layer.held, codec.profile.name.removeprefix("state-"), _kind(codec)) for codec, layer in under]
    ranks = [line._replace(values=layer.curve.effective_rank) for line, (_, layer) in zip(errors, under, strict=True)]
    before = Line(plain.curve.effective_rank, "as it is", "layer")
    return CodecPanel(
        title=f"layer {plain.layer}",
        anchor=f"codecs-{plain.layer}",
        charts=(
            Chart("Error of the held state", chart(positions, errors, decades(_all(errors)), end=end)),
            Chart(
                "Effective rank of the held state",
                chart(positions, [before, *ranks], linear(_all([before, *ranks])), end=end),
            ),
        ),
        rows=(_layer_row("as it is", None, plain.curve), *(_layer_row(c.profile.name, l, l.curve) for c, l in under)),
    )


def _kind(codec: CodecState) -> str:
    """Errors that may add up are drawn solid, those of a codec that acts once dashed."""
    return "along" if codec.accumulates else "once"


def _all(lines: list[Line]) -> list[float | None]:
    return [value for line in lines for value in line.values]


def _layer_row(name: str, layer: CodecLayer | None, curve: Curve) -> CodecLayerRow:
    once, held, worst = (None, None, None) if layer is None else (layer.once[-1], layer.held[-1], layer.worst_head)
    return CodecLayerRow(
        name=name,
        once=measures.share(once),
        held=measures.share(held),
        worst=measures.share(worst),
        norm=measures.significant(curve.norm[-1]),
        rank=f"{curve.effective_rank[-1]:.1f}",
        saturation=measures.extent([curve.saturation[-1]], "{:.2f}".format),
    )
