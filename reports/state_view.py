"""A measured state as frozen values: every number written, every chart drawn, nothing left to a template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from markupsafe import Markup

from evalgate.reports import figures, half_lives, measures
from evalgate.reports.half_lives import HORIZONS, HalfLives
from evalgate.reports.headline import Fact
from evalgate.reports.state_codecs import CodecPanel, CodecRow, codec_panels, codec_rows
from evalgate.reports.state_curves import CurvePanel, Kept, curve_panel, kept_by_third
from evalgate.state_record import LayerState, StateRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One layer at the end of the stream."""

    label: str
    median: str
    """Median half-life on the haystack."""
    seen: str
    """Share of channels that outlive each horizon, on the haystack."""
    rest: str
    """The same with no input to the gates."""
    norm: str
    rank: str
    saturation: str
    kept: str
    """What is left of what each third of the context wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRow:
    """One head's decay."""

    label: str
    chart: Markup
    seen: half_lives.Spread
    rest: half_lives.Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTable:
    """The heads of one layer."""

    title: str
    anchor: str
    rows: tuple[HeadRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """One page, ready to print, in reading order."""

    title: str
    name: str
    subject: str
    sentence: str
    facts: tuple[Fact, ...]
    horizons: str
    """``1k / 8k / 128k``"""
    layers: tuple[LayerRow, ...]
    heads: tuple[HeadTable, ...]
    axis: Markup
    curves: tuple[CurvePanel, ...]
    codecs: tuple[CodecRow, ...]
    panels: tuple[CodecPanel, ...]
    stored: str
    """Bytes of one session's state as it is."""
    identity: tuple[tuple[str, str], ...]


def build_state_view(record: StateRecord) -> StateView:
    """Count, word and draw everything."""
    name = record.model.name.rstrip("/").rpartition("/")[2]
    thirds = [kept_by_third(layer.kept, record.positions) for layer in record.layers]
    return StateView(
        title=f"State of {name}",
        name=name,
        subject=(
            f"haystack {record.seed} of seed set {record.seed_set}, suite {record.suite.name}@{record.suite.version} "
            f"at {figures.count(record.length)} tokens, {figures.plural(record.facts, 'needle')}"
        ),
        sentence=_sentence(thirds, record.positions[-1]),
        facts=_facts(record),
        horizons=_horizons(),
        layers=tuple(_layer_row(layer, kept) for layer, kept in zip(record.layers, thirds, strict=True)),
        heads=tuple(_head_table(layer) for layer in record.layers),
        axis=half_lives.axis(),
        curves=tuple(curve_panel(layer, record) for layer in record.layers),
        codecs=codec_rows(record),
        panels=codec_panels(record),
        stored=figures.size(record.nbytes),
        identity=_identity(record),
    )


def _sentence(thirds: Sequence[Kept], tokens: int) -> str:
    front = measures.extent((kept.front for kept in thirds), measures.share).replace("–", " to ")
    back = measures.extent((kept.back for kept in thirds), measures.share).replace("–", " to ")
    return (
        f"After {figures.count(tokens)} tokens, {front} is left of what the front third of the context wrote and "
        f"{back} of what the back third wrote, by layer."
    )


def _facts(record: StateRecord) -> tuple[Fact, ...]:
    heads = [head for layer in record.layers for head in layer.heads]
    ends = [layer.curve for layer in record.layers]
    rank = measures.extent((curve.effective_rank[-1] for curve in ends), "{:.1f}".format)
    rest = half_lives.outlive(_joined(head.rest for head in heads))
    shape = f"{record.key_width} × {record.value_width}"
    return (
        Fact(
            label=f"Channels that outlive {_horizons()} tokens",
            value=half_lives.outlive(_joined(head.seen for head in heads)),
            note=f"on this haystack; {rest} with no input",
        ),
        Fact(
            label="Effective rank",
            value=f"{rank} of {min(record.key_width, record.value_width)}",
            note="directions in use by a head, by layer, at the end",
        ),
        Fact(
            label="Saturation",
            value=measures.extent((curve.saturation[-1] for curve in ends), "{:.2f}".format),
            note="0: writes add, 1: writes only replace; by layer, at the end",
        ),
        Fact(
            label="State of one session",
            value=figures.size(record.nbytes),
            note=f"{len(record.layers)} layers × {len(record.layers[0].heads)} heads × {shape} in fp32",
        ),
    )


def _layer_row(layer: LayerState, kept: Kept) -> LayerRow:
    seen = half_lives.spread(_joined(head.seen for head in layer.heads))
    return LayerRow(
        label=f"layer {layer.layer}",
        median=seen.median,
        seen=seen.outlive,
        rest=half_lives.outlive(_joined(head.rest for head in layer.heads)),
        norm=measures.significant(layer.curve.norm[-1]),
        rank=f"{layer.curve.effective_rank[-1]:.1f}",
        saturation=measures.extent([layer.curve.saturation[-1]], "{:.2f}".format),
        kept=measures.side_by_side(measures.share(share) for share in kept),
    )


def _head_table(layer: LayerState) -> HeadTable:
    # One scale for all heads of a layer, so that they can be compared by eye.
    top = max(n for head in layer.heads for values in (head.seen, head.rest) for n in half_lives.counts(values))
    return HeadTable(
        title=f"layer {layer.layer}",
        anchor=f"heads-{layer.layer}",
        rows=tuple(
            HeadRow(
                label=f"head {at}",
                chart=half_lives.histogram(head.rest, head.seen, top),
                seen=half_lives.spread(head.seen),
                rest=half_lives.spread(head.rest),
            )
            for at, head in enumerate(layer.heads)
        ),
    )


def _horizons() -> str:
    return measures.side_by_side(label for _, label in HORIZONS)


def _joined(rows: Iterable[HalfLives]) -> list[float | None]:
    return list(chain.from_iterable(rows))


def _identity(record: StateRecord) -> tuple[tuple[str, str], ...]:
    return (
        ("Model", record.model.name),
        ("Weights sha256", record.model.weights_sha256),
        ("Tokenizer sha256", record.model.tokenizer_sha256),
        ("Suite", f"{record.suite.name}@{record.suite.version}"),
        ("Suite digest", record.suite.digest),
        ("Haystack", f"seed {record.seed} of set {record.seed_set}, stream {record.stream}, length {record.length}"),
        *((f"Profile {codec.profile.name}@{codec.profile.version}", codec.profile.digest) for codec in record.codecs),
    )
