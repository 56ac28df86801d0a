"""Kimi Delta Attention as a layer: its projections, around the core that runs on the layer's slots.

Projections that read the same input are fused into one matrix when the layer is built.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from evalgate.engine.batch import PrefillBatch
from evalgate.engine.config import ModelConfig
from evalgate.engine.kda_core import KdaCore, KdaInputs, KdaMemory, KdaParameters
from evalgate.engine.state_pool import StatePool
from evalgate.engine.weights import Weights
from evalgate.kernels.kda_prefill import AtGrid


class KdaLayer:
    """Weights of one layer, and its place ``index`` in the state pool."""

    def __init__(
        self, config: ModelConfig, weights: Weights, at: str, index: int, dtype: torch.dtype, core: KdaCore
    ) -> None:
        heads, width = config.linear_heads, config.linear_width
        self.index, self.core = index, core
        names = ("q_proj", "k_proj", "v_proj", "f_a_proj", "g_a_proj", "b_proj")
        self.inputs = weights.read(*(f"{at}.{name}.weight" for name in names), dtype=dtype)
        self.input_widths = [3 * heads * width, width, width, heads]
        self.forget = weights.read(f"{at}.f_b_proj.weight", dtype=dtype)
        self.gate = weights.read(f"{at}.g_b_proj.weight", dtype=dtype)
        # The gates and the core run in float32 even where activations are bfloat16.
        wide = torch.promote_types(dtype, torch.float32)
        self.parameters = KdaParameters(
            heads=heads,
            width=width,
            eps=config.rms_eps,
            taps=weights.read(f"{at}.conv1d.weight", dtype=dtype).squeeze(1).T.contiguous(),
            a_log=weights.read(f"{at}.A_log", dtype=wide).flatten(),
            dt_bias=weights.read(f"{at}.dt_bias", dtype=wide).view(heads, width),
            norm=weights.read(f"{at}.o_norm.weight", dtype=wide),
        )
        self.output = weights.read(f"{at}.o_proj.weight", dtype=dtype)

    def prefill(self, x: Tensor, batch: PrefillBatch, states: StatePool, at_grid: AtGrid | None) -> Tensor:
        """``[B, T, hidden]`` -> the same; advances the slots."""
        mixed = self.core.prefill(self.parameters, self._projected(x), batch, self._memory(states), at_grid)
        return linear(mixed, self.output)

    def decode(self, x: Tensor, slots: Tensor, states: StatePool) -> Tensor:
        """One token for each row, ``[B, hidden]`` -> the same; advances the slots."""
        return linear(self.core.decode(self.parameters, self._projected(x), slots, self._memory(states)), self.output)

    def _projected(self, x: Tensor) -> KdaInputs:
        qkv, forget, gate, beta = linear(x, self.inputs).split_with_sizes(self.input_widths, dim=-1)
        return KdaInputs(qkv, linear(forget, self.forget), linear(gate, self.gate), beta)

    def _memory(self, states: StatePool) -> KdaMemory:
        return KdaMemory(states.recurrent[self.index], states.conv[self.index])
