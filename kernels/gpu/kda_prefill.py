"""Kimi Delta Attention over packed sequences on a GPU: prefill straight from and into the slots of a state pool.

The equations are those of :mod:`evalgate.kernels.kda_prefill`, gates and norms included.
:mod:`evalgate.kernels.gpu.kda_within` works on all chunks at once; here the states go through them, one sequence,
head and block of value channels a program.  Cutting on the 64-grid changes no bit: what a chunk does depends on its
own tokens and on the float32 state before it, which a pool slot holds exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalgate.kernels.gpu.kda_chunks import Chunks
from evalgate.kernels.gpu.kda_within import Work, kda_within, precision
from evalgate.kernels.gpu.kda_within import published as published_within
from evalgate.kernels.gpu.launch import Launch
from evalgate.kernels.gpu.product import product
from evalgate.kernels.gpu.rounding import narrowed
from evalgate.kernels.kda_prefill import CHUNK

_CHUNK: tl.constexpr = tl.constexpr(CHUNK)


class Across(NamedTuple):
    """How the sequential kernel is built for one head size."""

    values: int
    """Value channels of a program, half as many in float32: fewer are more programs, more are fewer loads of keys."""
    warps: int
    stages: int
    """Chunks on their way at a time, in bfloat16; float32 is twice as large and loads one chunk at a time."""


ACROSS = {16: Across(16, 4, 2), 32: Across(32, 4, 2), 64: Across(32, 4, 2), 128: Across(32, 4, 2)}
"""By head size."""


class Snapshots(NamedTuple):
    """Where the states at grid points go."""

    target: Tensor
    """float32 ``[slots, H, K, V]``; other slots than those named are left alone."""
    slots: Tensor
    """int64 ``[C]``: for each chunk, sequence after sequence, the slot for the state after it; -1: none.

    :meth:`Chunks.snapshot_slots` makes it, and refuses token counts off the grid.
    """


@triton.jit
def across_kernel(
    out_ptr, queries_ptr, keys_ptr, recall_ptr, given_ptr, inner_ptr, fade_ptr,
    pieces_ptr, slots_ptr, pool_ptr, target_ptr, target_slots_ptr,
    pool_slot, pool_head, pool_row, target_slot, target_head, target_row,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    PRECISION: tl.constexpr, SNAPSHOTS: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """One sequence, head and block of value channels: the state from its slot through the chunks and back."""
    dtype: tl.constexpr = queries_ptr.dtype.element_ty
    head = (tl.program_id(0) // (V // BV)).to(tl.int64)
    value = (tl.program_id(0) % (V // BV)) * BV + tl.arange(0, BV)
    piece = pieces_ptr + 6 * tl.program_id(1).to(tl.int64)
    sequence, first, token = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2)
    tokens, grid = tl.load(piece + 3), tl.load(piece + 4)
    row = tl.arange(0, _CHUNK)
    channel = tl.arange(0, K)

    slot = tl.load(slots_ptr + sequence)
    ours = slot >= 0  # a masked sequence reads no state, writes none, and puts out zeros
    home = pool_ptr + slot * pool_slot + head * pool_head + channel[:, None] * pool_row.to(tl.int64) + value
    state = tl.load(home, mask=ours & (value >= 0), other=0.0)
    for n in tl.range(0, (tokens + _CHUNK - 1) // _CHUNK, num_stages=STAGES):
        place = (first + n) * H + head
        if SNAPSHOTS:
            to = tl.load(target_slots_ptr + grid + n)
        wide = place * _CHUNK * K + row[:, None] * K + channel
        narrow = place * _CHUNK * V + row[:, None] * V + value
        square = place * _CHUNK * _CHUNK + row[:, None] * _CHUNK + row
        known = narrowed(state, dtype)
        given = tl.load(given_ptr + narrow).to(tl.float32)
        written = given - product(tl.load(recall_ptr + wide), known, PRECISION)
        written = narrowed(written, dtype)
        out = product(tl.load(queries_ptr + wide), known, PRECISION)
        out = product(tl.load(inner_ptr + square), written, PRECISION, out)
        state *= tl.load(fade_ptr + place * K + channel)[:, None]
        state = product(tl.trans(tl.load(keys_ptr + wide)), written, PRECISION, state)
        at = n * _CHUNK + row
        to_out = out_ptr + ((token + at)[:, None] * H + head) * V + value
        tl.store(to_out, narrowed(tl.where(ours, out, 0.0), out_ptr.dtype.element_ty), mask=(at < tokens)[:, None])
        if SNAPSHOTS:
            copy = target_ptr + to * target_slot + head * target_head
            copy = copy + channel[:, None] * target_row.to(tl.int64) + value
            tl.store(copy, state, mask=ours & (to >= 0) & (value >= 0))
    tl.store(home, state, mask=ours & (value >= 0))


def kda_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    beta: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    pool: Tensor,
    slots: Tensor,
    chunks: Chunks,
    *,
    scale: float,
    snapshots: Snapshots | None = None,
) -> Tensor:
    """Output ``[N, H, V]`` in the dtype of ``v`` for N packed tokens, all rows written; advances the slots.

    ``q``, ``k``, ``f`` are ``[N, H, K]``, ``v`` is ``[N, H, V]``, ``beta`` is ``[N, H]``: raw, float32 or bfloat16.
    With ``q_t = scale * l2norm(q)``, ``k_t = l2norm(k)``, ``beta_t = sigmoid(beta)`` and
    ``alpha_t = exp(-exp(a_log) * softplus(f + dt_bias))`` (``a_log`` ``[H]`` and ``dt_bias`` ``[H, K]`` in float32)::

        S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T
        o_t = S_t^T q_t

    Sequence s starts from ``pool[slots[s]]`` and leaves its last state there (``pool`` float32 ``[slots, H, K, V]``,
    ``slots`` int64 ``[S]``, distinct; a sequence without tokens touches nothing).  Slot -1 is masked: no state is read
    or written, its output is 0.  ``chunks`` says how long the sequences are; K is 16, 32, 64 or 128, V a power of two
    from 16 on.  All but the last dimension may have any stride.
    """
    tokens, heads, width = q.shape
    values = v.shape[2]
    assert tokens == sum(chunks.lengths), "chunks are those of this batch"
    assert all(x.stride(-1) == 1 for x in (q, k, v, f, pool)), "the last dimension is dense"
    assert dt_bias.is_contiguous(), "dt_bias is dense"
    out = v.new_empty(v.shape)
    build = ACROSS[width]
    exact = v.dtype == torch.float32
    block = min(max(build.values // (1 + exact), 16), values)
    target = pool if snapshots is None else snapshots.target
    most = max((span.chunks.stop - span.chunks.start for span in chunks.spans), default=0)
    work = Work.room(most, heads, width, values, v)
    for span in chunks.spans:
        kda_within(q, k, v, f, beta, a_log, dt_bias, chunks.table[span.chunks], work, scale=scale)
        across_kernel[heads * (values // block), span.pieces.stop - span.pieces.start](
            out, *work[:6], chunks.pieces[span.pieces], slots, pool, target,
            slots if snapshots is None else snapshots.slots,
            *pool.stride()[:3], *target.stride()[:3],
            H=heads, K=width, V=values, BV=block,
            PRECISION=precision(v.dtype), SNAPSHOTS=snapshots is not None,
            STAGES=1 if exact else build.stages,
            num_warps=build.warps,
        )  # fmt: skip
    return out


def published() -> tuple[Launch, ...]:
    """At 32 heads of 128, bfloat16, with snapshots."""
    build = ACROSS[128]
    floats = {f"{name}_ptr": "*bf16" for name in ("out", "queries", "keys", "recall", "given", "inner")}
    wide = {f"{name}_ptr": "*fp32" for name in ("fade", "pool", "target")}
    whole = {f"{name}_ptr": "*i64" for name in ("pieces", "slots", "target_slots")}
    strides = {f"{name}_{what}": "i32" for name in ("pool", "target") for what in ("slot", "head", "row")}
    sizes: dict[str, object] = {"H": 32, "K": 128, "V": 128, "BV": build.values, "PRECISION": "tf32"}
    return (
        *published_within(),
        Launch(
            "kda_prefill across chunks",
            across_kernel,
            floats | wide | whole | strides,
            {**sizes, "SNAPSHOTS": True, "STAGES": build.stages},
            build.warps,
            build.stages,
            "(heads x value blocks) x sequences",
            tuple(strides),
        ),
    )
