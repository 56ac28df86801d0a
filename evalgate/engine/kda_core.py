"""The middle of a Kimi Delta Attention layer, between its projections: convolution, gates, recurrence and gated norm.

What runs it differs by device; what goes in, what comes out and what it leaves in the state pool do not.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from evalgate.engine.batch import PrefillBatch
from evalgate.kernels.kda_decode import kda_decode
from evalgate.kernels.kda_gate import kda_gate, l2norm
from evalgate.kernels.kda_prefill import CHUNK, AtGrid, chunk_kda
from evalgate.kernels.rms_norm import gated_rms_norm, widened
from evalgate.kernels.short_conv import short_conv

BLOCK = 1 << 16
"""Channels of queries, over rows, tokens and heads, that each thread takes through a layer at a time."""


class KdaParameters(NamedTuple):
    """What a layer has learned for its core, whose sums are taken in at least float32."""

    heads: int
    width: int
    eps: float
    taps: Tensor
    """``[W, 3 H K]``, oldest input first."""
    a_log: Tensor
    """``[H]``"""
    dt_bias: Tensor
    """``[H, K]``"""
    norm: Tensor
    """``[V]``"""


class KdaInputs(NamedTuple):
    """Projections of ``[..., hidden]``."""

    qkv: Tensor
    """``[..., 3 H K]``"""
    forget: Tensor
    """``[..., H K]``"""
    gate: Tensor
    """``[..., H V]``"""
    beta: Tensor
    """``[..., H]``"""


class KdaMemory(NamedTuple):
    """One layer of the state pool; the slots that take part are advanced in place."""

    recurrent: Tensor
    """``[slots, H, K, V]``"""
    conv: Tensor
    """``[slots, W - 1, 3 H K]``"""


class KdaCore(Protocol):
    """One way to run the core."""

    acts_on_grid: bool
    """Whether a codec can act inside a stretch; else passes have to end where one acts."""

    def prefill(
        self, layer: KdaParameters, inputs: KdaInputs, batch: PrefillBatch, memory: KdaMemory, at_grid: AtGrid | None
    ) -> Tensor:
        """``[B, T, ...]`` inputs -> ``[B, T, H V]``; what padded tokens give is meaningless."""
        ...

    def decode(self, layer: KdaParameters, inputs: KdaInputs, slots: Tensor, memory: KdaMemory) -> Tensor:
        """One token for each row, ``[B, ...]`` inputs -> ``[B, H V]``."""
        ...


class TorchKda:
    """By torch operations."""

    acts_on_grid = True

    def prefill(
        self, layer: KdaParameters, inputs: KdaInputs, batch: PrefillBatch, memory: KdaMemory, at_grid: AtGrid | None
    ) -> Tensor:
        """Block by block: what one step leaves is still near the processor when the next one takes it up."""
        state = memory.recurrent.index_select(0, batch.slots)
        tail = memory.conv.index_select(0, batch.slots)
        rows, length, channels = inputs.gate.shape
        core = torch.empty_like(inputs.gate)
        block = max(BLOCK * torch.get_num_threads() // (rows * channels) // CHUNK, 1) * CHUNK
        for start in range(0, length, block):
            part = slice(start, start + block)
            lengths = None if batch.lengths is None else (batch.lengths - start).clamp(0, block)
            mixed = short_conv(inputs.qkv[:, part], layer.taps, tail, lengths)
            tail = mixed.state
            q, k, v, g, b = self.recurrence_inputs(layer, mixed.output, inputs.forget[:, part], inputs.beta[:, part])
            if batch.real is not None:
                padding = ~batch.real[:, part]
                # Padding writes nothing and decays nothing; selecting, not multiplying, keeps a NaN out as well.
                k, v, g = (t.masked_fill(padding[:, :, None, None], 0.0) for t in (k, v, g))
                b = b.masked_fill(padding[:, :, None], 0.0)
            result = chunk_kda(q, k, v, g, b, state, at_grid=shifted(at_grid, start))
            state = result.final_state
            core[:, part] = _gated(layer, result.output, inputs.gate[:, part])
        memory.conv.index_copy_(0, batch.slots, tail)
        memory.recurrent.index_copy_(0, batch.slots, state)
        return core

    def decode(self, layer: KdaParameters, inputs: KdaInputs, slots: Tensor, memory: KdaMemory) -> Tensor:
        """By the recurrence itself."""
        mixed = short_conv(inputs.qkv[:, None], layer.taps, memory.conv.index_select(0, slots))
        memory.conv.index_copy_(0, slots, mixed.state)
        core = kda_decode(
            *self.recurrence_inputs(layer, mixed.output[:, 0], inputs.forget, inputs.beta), memory.recurrent, slots
        )
        return _gated(layer, core, inputs.gate)

    def recurrence_inputs(
        self, layer: KdaParameters, qkv: Tensor, forget: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v, log decay ``[..., H, K]`` and beta ``[..., H]``, in at least float32."""
        q, k, v = torch.unflatten(qkv, -1, (3, layer.heads, layer.width)).unbind(dim=-3)
        g = torch.unflatten(forget, -1, (layer.heads, layer.width))
        return (
            l2norm(q, layer.width**-0.5),
            l2norm(k),
            widened(v),
            kda_gate(g, layer.a_log, layer.dt_bias),
            widened(beta).sigmoid(),
        )


def _gated(layer: KdaParameters, core: Tensor, gate: Tensor) -> Tensor:
    """The norm of ``[..., H, V]`` times its gate, ``[..., H * V]``."""
    gates = torch.unflatten(gate, -1, (layer.heads, layer.width))
    return gated_rms_norm(core, gates, layer.norm, layer.eps).flatten(-2)


def shifted(at_grid: AtGrid | None, start: int) -> AtGrid | None:
    """The same for a stretch that begins ``start`` tokens later."""
    return None if at_grid is None else lambda tokens, state: at_grid(start + tokens, state)
