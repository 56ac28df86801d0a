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
from evalgate.kernels.kda_prefill import AtGrid, chunk_kda
from evalgate.kernels.rms_norm import gated_rms_norm, widened
from evalgate.kernels.short_conv import short_conv


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
        qkv, forget, gate, beta = linear(x, self.inputs).split_with_sizes(self.input_widths, dim=-1)
        recurrent, conv = states.recurrent[self.index], states.conv[self.index]
        mixed = short_conv(qkv, self.taps, conv.index_select(0, batch.slots), batch.lengths)
        conv.index_copy_(0, batch.slots, mixed.state)
        q, k, v, g, b = self._core_inputs(mixed.output, forget, beta)
        if batch.real is not None:
            padding = ~batch.real
            # Padding writes nothing and decays nothing; selecting, not multiplying, keeps a NaN out as well.
            k, v, g = (t.masked_fill(padding[:, :, None, None], 0.0) for t in (k, v, g))
            b = b.masked_fill(padding[:, :, None], 0.0)
        state = recurrent.index_select(0, batch.slots)
        result = chunk_kda(q, k, v, g, b, state, at_grid=at_grid)
        recurrent.index_copy_(0, batch.slots, result.final_state)
        return self._project(result.output, gate)

    def decode(self, x: Tensor, slots: Tensor, states: StatePool) -> Tensor:
        """One token for each row, ``[B, hidden]`` -> the same; advances the slots."""
        qkv, forget, gate, beta = linear(x, self.inputs).split_with_sizes(self.input_widths, dim=-1)
        conv = states.conv[self.index]
        mixed = short_conv(qkv[:, None], self.taps, conv.index_select(0, slots))
        conv.index_copy_(0, slots, mixed.state)
        inputs = self._core_inputs(mixed.output[:, 0], forget, beta)
        return self._project(kda_decode(*inputs, states.recurrent[self.index], slots), gate)

    def _core_inputs(self, qkv: Tensor, forget: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v, log decay ``[..., H, K]`` and beta ``[..., H]``, in at least float32."""
        q, k, v = torch.unflatten(qkv, -1, (3, self.heads, self.width)).unbind(dim=-3)
        g = torch.unflatten(linear(forget, self.forget), -1, (self.heads, self.width))
        return (
            l2norm(q) * self.width**-0.5,
            l2norm(k),
            widened(v),
            kda_gate(g, self.a_log, self.dt_bias),
            widened(beta).sigmoid(),
        )

    def _project(self, core: Tensor, gate: Tensor) -> Tensor:
        gates = torch.unflatten(linear(gate, self.gate), -1, (self.heads, self.width))
        return linear(gated_rms_norm(core, gates, self.norm, self.eps).flatten(-2), self.output)
