"""The cores of an engine's layers by Triton kernels: tokens packed without padding, states by slot, latents by page."""

from __future__ import annotations

import torch
from torch import Tensor

from evalgate.engine.batch import DecodeBatch, PageTable, PrefillBatch
from evalgate.engine.kda_core import KdaInputs, KdaMemory, KdaParameters
from evalgate.engine.mla_core import MlaParameters
from evalgate.engine.page_pool import PagePool
from evalgate.kernels.gpu.kda_decode import kda_decode
from evalgate.kernels.gpu.kda_prefill import kda_prefill
from evalgate.kernels.gpu.mla_decode import Shared, mla_decode
from evalgate.kernels.gpu.rms_norm import gated_rms_norm
from evalgate.kernels.gpu.short_conv import short_conv, short_conv_update
from evalgate.kernels.gpu.state_codec import StoredStates
from evalgate.kernels.kda_prefill import AtGrid


class TritonKda:
    """States stay in their slots: kernels read and write them there."""

    acts_on_grid = False

    def prefill(
        self, layer: KdaParameters, inputs: KdaInputs, batch: PrefillBatch, memory: KdaMemory, at_grid: AtGrid | None
    ) -> Tensor:
        """All rows in one pass over their real tokens."""
        assert at_grid is None, "passes end where a codec acts"
        qkv, forget, gate, beta = (batch.packed(x) for x in inputs)
        mixed = short_conv(qkv, layer.taps, memory.conv, batch.packing, batch.slots)
        q, k, v = split(layer, mixed)
        core = kda_prefill(
            q,
            k,
            v,
            heads(layer, forget),
            beta,
            layer.a_log,
            layer.dt_bias,
            memory.recurrent,
            batch.slots,
            batch.chunks,
            scale=layer.width**-0.5,
        )
        return batch.padded(gated_rms_norm(core, heads(layer, gate), layer.norm, layer.eps).flatten(-2))

    def decode(self, layer: KdaParameters, inputs: KdaInputs, slots: Tensor, memory: KdaMemory) -> Tensor:
        """One token for each row, in two launches and the norm."""
        q, k, v = split(layer, short_conv_update(inputs.qkv, layer.taps, memory.conv, slots))
        core = kda_decode(
            q,
            k,
            v,
            heads(layer, inputs.forget),
            inputs.beta,
            layer.a_log,
            layer.dt_bias,
            StoredStates(memory.recurrent),
            slots,
            slots,
            scale=layer.width**-0.5,
        )
        return gated_rms_norm(core, heads(layer, inputs.gate), layer.norm, layer.eps).flatten(-2)


def heads(layer: KdaParameters, x: Tensor) -> Tensor:
    """``[..., H K]`` -> ``[..., H, K]``"""
    return x.view(*x.shape[:-1], layer.heads, layer.width)


def split(layer: KdaParameters, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``[..., 3 H K]`` -> three of ``[..., H, K]``"""
    q, k, v = qkv.view(*qkv.shape[:-1], 3, layer.heads, layer.width).unbind(dim=-3)
    return q, k, v
