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
from evalgate.kernels.gpu.mla_prefill import mla_prefill
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


class TritonMla:
    """Latents stay in their pages, in the form that they are stored in."""

    def prefill(self, mla: MlaParameters, q: Tensor, latents: Tensor, batch: PrefillBatch, pages: PagePool) -> Tensor:
        """Over pages alone: the stretch's own latents are there already."""
        last = q.shape[1] < latents.shape[1]
        runs = batch.last_runs if last else batch.runs
        if last and runs.rules is None:
            # One query a row: cheaper as a step of decoding, which expands nothing.
            return self._decoded(mla, q.squeeze(1), batch.table, None, pages).unsqueeze(1)
        found = mla_prefill(
            q.flatten(0, 1) if last else batch.packed(q),
            pages.columns[0][mla.layer],
            batch.table.pages,
            mla.joined,
            runs,
            scale=mla.scale,
            page=pages.page,
            scales=_scales(mla, pages),
            shared=batch.common,
        ).output
        return found.unsqueeze(1) if last else batch.padded(found)

    def decode(self, mla: MlaParameters, q: Tensor, batch: DecodeBatch, pages: PagePool) -> Tensor:
        """In the absorbed form; what all rows share is read once."""
        return self._decoded(mla, q, batch.table, batch.shared_table, pages)

    @staticmethod
    def _decoded(mla: MlaParameters, q: Tensor, table: PageTable, shared: PageTable | None, pages: PagePool) -> Tensor:
        nope = mla.expand.key.shape[1]
        absorbed = torch.cat([torch.einsum("bhn,hnl->bhl", q[..., :nope], mla.expand.key), q[..., nope:]], dim=-1)
        found = mla_decode(
            absorbed,
            pages.columns[0][mla.layer],
            *table,
            scale=mla.scale,
            latent_width=mla.expand.latent,
            page=pages.page,
            scales=_scales(mla, pages),
            shared=None if shared is None else Shared(*shared, torch.arange(0, len(q) + 1, len(q), device=q.device)),
        )
        return torch.einsum("bhl,hvl->bhv", found.output, mla.expand.value)


def _scales(mla: MlaParameters, pages: PagePool) -> Tensor | None:
    """Scales of 8-bit latents ``[rows, 2]``; None where latents are floats."""
    return pages.columns[1][mla.layer] if len(pages.columns) > 1 else None
