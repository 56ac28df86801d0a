"""Kimi Delta Attention as a layer: projections, short convolution, gates, the recurrence, gated norm.

Projections that read the same input are fused into one matrix when the layer is built.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from evalgate.engine.batch import PrefillBatch
from evalgate.engine.config import ModelConfig
from evalgate.engine.state_pool import StatePool
from evalgate.engine.weights import Weights
from evalgate.kernels.kda_decode import kda_decode
from evalgate.kernels.kda_gate import kda_gate, l2norm
from evalgate.kernels.kda_prefill import CHUNK, AtGrid, chunk_kda
from evalgate.kernels.rms_norm import gated_rms_norm, widened
from evalgate.kernels.short_conv import short_conv

BLOCK = 1 << 16
"""Channels of queries, over rows, tokens and heads, that each thread takes through a layer at a time."""


class KdaLayer:
    """Weights of one layer, and its place ``index`` in the state pool."""

    def __init__(self, config: ModelConfig, weights: Weights, at: str, index: int, dtype: torch.dtype) -> None:
        heads, width = config.linear_heads, config.linear_width
        channels = heads * width
        self.index = index
        self.heads, self.width, self.eps = heads, width, config.rms_eps
        names = ("q_proj", "k_proj", "v_proj", "f_a_proj", "g_a_proj", "b_proj")
        self.inputs = weights.read(*(f"{at}.{name}.weight" for name in names), dtype=dtype)
        self.input_widths = [3 * channels, width, width, heads]
        self.taps = weights.read(f"{at}.conv1d.weight", dtype=dtype).squeeze(1).T.contiguous()
        self.forget = weights.read(f"{at}.f_b_proj.weight", dtype=dtype)
        self.gate = weights.read(f"{at}.g_b_proj.weight", dtype=dtype)
        # The gates and the core run in float32 even where activations are bfloat16.
        core = torch.promote_types(dtype, torch.float32)
        self.a_log = weights.read(f"{at}.A_log", dtype=core).flatten()
        self.dt_bias = weights.read(f"{at}.dt_bias", dtype=core).view(heads, width)
        self.norm = weights.read(f"{at}.o_norm.weight", dtype=core)
        self.output = weights.read(f"{at}.o_proj.weight", dtype=dtype)

    def prefill(self, x: Tensor, batch: PrefillBatch, states: StatePool, at_grid: AtGrid | None) -> Tensor:
        """``[B, T, hidden]`` -> the same; advances the slots."""
        qkv, forget, gate, beta = self._projected(x)
        recurrent, conv = states.recurrent[self.index], states.conv[self.index]
        state = recurrent.index_select(0, batch.slots)
        tail = conv.index_select(0, batch.slots)
        core = torch.empty_like(gate)
        # Block by block: what one step leaves is still near the processor when the next one takes it up.
        block = max(BLOCK * torch.get_num_threads() // (len(x) * gate.shape[-1]) // CHUNK, 1) * CHUNK
        for start in range(0, x.shape[1], block):
            part = slice(start, start + block)
            lengths = None if batch.lengths is None else (batch.lengths - start).clamp(0, block)
            mixed = short_conv(qkv[:, part], self.taps, tail, lengths)
            tail = mixed.state
            q, k, v, g, b = self._core_inputs(mixed.output, forget[:, part], beta[:, part])
            if batch.real is not None:
                padding = ~batch.real[:, part]
                # Padding writes nothing and decays nothing; selecting, not multiplying, keeps a NaN out as well.
                k, v, g = (t.masked_fill(padding[:, :, None, None], 0.0) for t in (k, v, g))
                b = b.masked_fill(padding[:, :, None], 0.0)
            result = chunk_kda(q, k, v, g, b, state, at_grid=shifted(at_grid, start))
            state = result.final_state
            core[:, part] = self._gated(result.output, gate[:, part])
        conv.index_copy_(0, batch.slots, tail)
        recurrent.index_copy_(0, batch.slots, state)
        return linear(core, self.output)

    def decode(self, x: Tensor, slots: Tensor, states: StatePool) -> Tensor:
        """One token for each row, ``[B, hidden]`` -> the same; advances the slots."""
        qkv, forget, gate, beta = self._projected(x)
        conv = states.conv[self.index]
        mixed = short_conv(qkv[:, None], self.taps, conv.index_select(0, slots))
        conv.index_copy_(0, slots, mixed.state)
        inputs = self._core_inputs(mixed.output[:, 0], forget, beta)
        core = kda_decode(*inputs, states.recurrent[self.index], slots)
        return linear(self._gated(core, gate), self.output)

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs of the convolution, of the forget gate, of the output gate ``[..., 3 H K], [..., H K], [..., H K]``,
        and of beta ``[..., H]``.
        """
        qkv, forget, gate, beta = linear(x, self.inputs).split_with_sizes(self.input_widths, dim=-1)
        return qkv, linear(forget, self.forget), linear(gate, self.gate), beta

    def _core_inputs(self, qkv: Tensor, forget: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v, log decay ``[..., H, K]`` and beta ``[..., H]``, in at least float32."""
        q, k, v = torch.unflatten(qkv, -1, (3, self.heads, self.width)).unbind(dim=-3)
        g = torch.unflatten(forget, -1, (self.heads, self.width))
        return (
            l2norm(q, self.width**-0.5),
            l2norm(k),
            widened(v),
            kda_gate(g, self.a_log, self.dt_bias),
            widened(beta).sigmoid(),
        )

    def _gated(self, core: Tensor, gate: Tensor) -> Tensor:
        """The norm of ``[..., H, V]`` times its gate, ``[..., H * V]``."""
        gates = torch.unflatten(gate, -1, (self.heads, self.width))
        return gated_rms_norm(core, gates, self.norm, self.eps).flatten(-2)


def shifted(at_grid: AtGrid | None, start: int) -> AtGrid | None:
    """The same for a stretch that begins ``start`` tokens later."""
    return None if at_grid is None else lambda tokens, state: at_grid(start + tokens, state)
