"""What decides retention in the linear-attention layers, measured while tokens stream through a live engine.

The state of each layer is read wherever a stretch of tokens ends, and the inputs of the recurrence are taken down on
the way, so that the same stretch can be run again on other states: on none (what it wrote), on the identity (what it
did to older content), and on a state that a codec rounds as a profile says.
It knows tensors and tokens, never suites, profiles or pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from evalgate.engine.compression import Compression, StateCodec
from evalgate.engine.kda_core import KdaParameters, TorchKda
from evalgate.engine.kda_layer import KdaLayer
from evalgate.engine.llm import GRID, LLM
from evalgate.engine.state_figures import (
    effective_rank,
    half_lives,
    halvings,
    norm,
    pooled,
    ratio,
    saturation,
    stretch_effect,
)
from evalgate.errors import CheckpointError, DoesNotFitError
from evalgate.kernels.kda_gate import kda_gate
from evalgate.kernels.kda_prefill import chunk_kda
from evalgate.state_record import CodecLayer, Curve, HeadState, LayerState

STRETCHES = 16
"""Most positions at which states are read."""


class Retention(NamedTuple):
    """Positions (tokens that the state has seen), and the layers, uncompressed and under each codec."""

    positions: list[int]
    layers: list[LayerState]
    codecs: dict[str, list[CodecLayer]]


class Inputs(NamedTuple):
    """What the recurrence reads: q, k, g ``[1, T, H, K]``, v ``[1, T, H, V]``, beta ``[1, T, H]``."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


class RecordingKda(TorchKda):
    """Computes what it did before and keeps the inputs of the recurrence until they are taken."""

    def __init__(self) -> None:
        self._passes: list[Inputs] = []

    def take(self) -> Inputs:
        """The inputs of all tokens since the last call, one after another."""
        passes, self._passes = self._passes, []
        return Inputs(*(torch.cat(parts, dim=1) for parts in zip(*passes, strict=True)))

    def recurrence_inputs(
        self, layer: KdaParameters, qkv: Tensor, forget: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """As they are, and taken down."""
        inputs = super().recurrence_inputs(layer, qkv, forget, beta)
        self._passes.append(Inputs(*inputs))
        return inputs


class Recorded(NamedTuple):
    """A layer, its place in the model, and what takes its inputs down."""

    at: int
    layer: KdaLayer
    core: RecordingKda


def measure_retention(
    llm: LLM,
    tokens: Sequence[int],
    codecs: Mapping[str, Compression],
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> Retention:
    """Stream ``tokens`` up to the last multiple of 64 through ``llm``, an engine that compresses nothing.

    ``codecs`` are the state settings to compare, by name; ``report`` is told how many tokens are
    done, and of how many.
    Raises DoesNotFitError (too many tokens, or fewer than 64) and CheckpointError (a state that is not finite).
    """
    positions = stops(len(tokens))
    if not positions:
        raise DoesNotFitError(f"{len(tokens)} tokens: states are read every {GRID} tokens; stream a longer context")
    session = llm.start()
    try:
        with torch.inference_mode(), _recording(llm) as recorded:
            traces = [_LayerTrace(entry, codecs) for entry in recorded]
            for end in positions:
                start = session.tokens
                llm.extend(session, tokens[start:end])
                for trace in traces:
                    trace.take(llm.states.recurrent[trace.layer.index, session.slot][None], start)
                report(end, positions[-1])
            layers = [trace.layer_state(positions[-1]) for trace in traces]
            held = {name: [trace.held[name].codec_layer() for trace in traces] for name in codecs}
    finally:
        llm.release(session)
    return Retention(positions, layers, held)


def stops(tokens: int) -> list[int]:
    """Where states are read: at most 16 multiples of 64, evenly spaced but for the last one; empty below 64 tokens."""
    last = tokens // GRID * GRID
    step = -(-last // (STRETCHES * GRID)) * GRID
    return [*range(step, last, step), last] if last else []


@contextmanager
def _recording(llm: LLM) -> Iterator[list[Recorded]]:
    """The linear-attention layers, recording until the end of the block."""
    layers = [(at, mixer) for at, mixer in enumerate(llm.model.mixers) if isinstance(mixer, KdaLayer)]
    plain = [layer.core for _, layer in layers]
    recorded = [Recorded(at, layer, RecordingKda()) for at, layer in layers]
    for entry in recorded:
        entry.layer.core = entry.core
    try:
        yield recorded
    finally:
        for (_, layer), core in zip(layers, plain, strict=True):
            layer.core = core


class _Series:
    """A state against position, gathered stretch by stretch; states are ``[1, H, K, V]``."""

    def __init__(self, heads: int) -> None:
        self.norms = [torch.zeros(heads, dtype=torch.float64)]
        self.written: list[Tensor] = []
        self.ranks: list[Tensor] = []

    def take(self, state: Tensor, written: Tensor) -> None:
        """A state at the end of a stretch, and the norms ``[H]`` of what the stretch wrote."""
        self.norms.append(norm(state)[0])
        self.written.append(written)
        self.ranks.append(effective_rank(state)[0])

    def heads(self) -> list[Curve]:
        """The curve of each head."""
        columns = [torch.stack(rows, dim=1) for rows in (self.norms, self.ranks, self.written)]
        return [_curve(*rows) for rows in zip(*columns, strict=True)]

    def layer(self) -> Curve:
        """The curve over all heads."""
        norms, written = (pooled(torch.stack(rows)) for rows in (self.norms, self.written))
        return _curve(norms, torch.stack([row.mean() for row in self.ranks]), written)


def _curve(norms: Tensor, ranks: Tensor, written: Tensor) -> Curve:
    return Curve(
        norm=norms[1:].tolist(),
        effective_rank=ranks.tolist(),
        saturation=saturation(norms[:-1], norms[1:], written),
    )


class _LayerTrace:
    """One layer along the stream."""

    def __init__(self, recorded: Recorded, codecs: Mapping[str, Compression]) -> None:
        self.at, self.layer, self._core = recorded
        heads, width = self.layer.parameters.heads, self.layer.parameters.width
        self.held = {name: _HeldState(StateCodec(codec), heads) for name, codec in codecs.items()}
        self._series = _Series(heads)
        self._halved = torch.zeros(heads, width, dtype=torch.float64)
        self._left: list[Tensor] = []
        """Of each stretch: what is left of what it wrote."""

    def take(self, state: Tensor, start: int) -> None:
        """The state ``[1, H, K, V]`` after the stretch that began at token ``start``."""
        inputs = self._core.take()
        if not state.isfinite().all():
            raise CheckpointError(
                f"the state of layer {self.at} is not finite after {start + inputs.k.shape[1]} tokens; the weights are "
                "broken or too large for fp32: check the checkpoint"
            )
        transition, written = stretch_effect(*inputs[1:])
        self._halved += halvings(inputs.g[0]).sum(dim=0)
        self._left = [transition @ left for left in self._left] + [written]
        wrote = norm(written)[0]
        self._series.take(state, wrote)
        for held in self.held.values():
            held.take(state, inputs, start, wrote)

    def layer_state(self, tokens: int) -> LayerState:
        """Everything about the uncompressed state, after ``tokens`` tokens."""
        layer = self.layer.parameters
        resting = halvings(kda_gate(torch.zeros_like(layer.dt_bias), layer.a_log, layer.dt_bias))
        left = torch.stack([norm(part)[0] for part in self._left], dim=1)
        wrote = torch.stack(self._series.written, dim=1)
        heads = [
            HeadState(rest=half_lives(rest), seen=half_lives(seen), curve=curve, kept=ratio(*kept))
            for rest, seen, curve, kept in zip(
                resting, self._halved / tokens, self._series.heads(), zip(left, wrote, strict=True), strict=True
            )
        ]
        kept = ratio(pooled(left.T), pooled(wrote.T))
        return LayerState(layer=self.at, heads=heads, curve=self._series.layer(), kept=kept)


class _HeldState:
    """One layer's state as a profile would hold it, driven by the inputs of the uncompressed stream.

    So its error is the codec's alone: what changes in the activations because of it is not in it.
    """

    def __init__(self, codec: StateCodec, heads: int) -> None:
        self._codec = codec
        self._state: Tensor | None = None
        self._errors: list[Tensor] = []
        self._series = _Series(heads)
        self._once: list[float] = []
        self._held: list[float] = []
        self._worst = 0.0

    def take(self, state: Tensor, inputs: Inputs, start: int, wrote: Tensor) -> None:
        """The uncompressed state after a stretch, the stretch's inputs, and the norms ``[H]`` of what it wrote."""
        rounded = self._codec.round_trip(state)
        if self._codec.every is None:
            self._state = rounded
        else:
            if self._state is None:
                self._errors = [torch.zeros(s.shape, dtype=s.dtype) for s in self._codec.error_specs(state.shape)]
            at_grid = self._codec.at_grid(start, None, self._errors)
            self._state = chunk_kda(*inputs, self._state, at_grid=at_grid).final_state
        self._once.append(_error(state, rounded))
        self._held.append(_error(state, self._state))
        self._worst = max(_error(*pair) for pair in zip(state[0], self._state[0], strict=True))
        self._series.take(self._state, wrote)

    def codec_layer(self) -> CodecLayer:
        """The errors and the curve of the held state."""
        return CodecLayer(once=self._once, held=self._held, worst_head=self._worst, curve=self._series.layer())


def _error(state: Tensor, other: Tensor) -> float:
    """Norm of the difference over the norm of ``state``; 0 for two empty states."""
    difference = torch.linalg.vector_norm((state - other).double()).item()
    return difference / torch.linalg.vector_norm(state.double()).item() if difference else 0.0
