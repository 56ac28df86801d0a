"""What each chunk of 64 tokens does to whatever state comes before it: the parallel half of the KDA prefill on a GPU.

Chunk by chunk and head by head, in no order.  It fuses the gates (decay, beta, unit queries and keys) with the
products inside the chunk; :mod:`evalgate.kernels.gpu.kda_prefill` then carries the state through the chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalgate.kernels.gpu.kda_gate import L2_EPS, log_decay, sigmoid
from evalgate.kernels.gpu.launch import Launch
from evalgate.kernels.gpu.product import product
from evalgate.kernels.gpu.rounding import narrowed
from evalgate.kernels.kda_prefill import CHUNK

_CHUNK: tl.constexpr = tl.constexpr(CHUNK)
_BLOCK: tl.constexpr = tl.constexpr(16)
"""Tokens of a sub-block: the smallest square that a matrix instruction works on."""
_BLOCKS: tl.constexpr = tl.constexpr(CHUNK // 16)
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)

WARPS = {torch.bfloat16: 4, torch.float32: 8}
"""By dtype.  At 128 channels in bfloat16 two warps spill registers, and of eight a multiprocessor holds one program."""


class Work(NamedTuple):
    """What C chunks do to the states S before them, per head; the GPU's form of ``Within`` of the CPU's chunk form.

    A chunk writes ``u = given - recall @ S``, puts out ``queries @ S + inner @ u``, and leaves the state
    ``fade * S + keys^T @ u``.  Rows past the last token of a chunk write nothing and decay nothing.
    """

    queries: Tensor
    """``[C, H, 64, K]``: scaled unit queries, decayed since the chunk began."""
    keys: Tensor
    """``[C, H, 64, K]``: unit keys, decayed until the chunk ends."""
    recall: Tensor
    """``[C, H, 64, K]``: the inverse triangle times ``beta_i k_i`` decayed since the chunk began."""
    given: Tensor
    """``[C, H, 64, V]``: the inverse triangle times ``beta_i v_i``."""
    inner: Tensor
    """``[C, H, 64, 64]``: the lower triangle of queries on keys."""
    fade: Tensor
    """float32 ``[C, H, K]``: the decay of the whole chunk."""
    steps: Tensor
    """float32 ``[C, H, 4, K]``: the decay of each sub-block."""

    @classmethod
    def room(cls, chunks: int, heads: int, width: int, values: int, like: Tensor) -> Work:
        """Uninitialised, for so many chunks, in the dtype of the activations ``like``."""
        rows = like.new_empty(3, chunks, heads, CHUNK, width)
        return cls(
            rows[0],
            rows[1],
            rows[2],
            like.new_empty(chunks, heads, CHUNK, values),
            like.new_empty(chunks, heads, CHUNK, CHUNK),
            like.new_empty(chunks, heads, width, dtype=torch.float32),
            like.new_empty(chunks, heads, CHUNK // _BLOCK.value, width, dtype=torch.float32),
        )


@triton.jit
def _parts(g):
    """Three bfloat16 tiles that add up to a float32 one exactly: what a sum by matrix product can read."""
    high = g.to(tl.bfloat16)
    rest = g - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _summed(which, high, middle, low):
    """Sums ``[16, K]`` of the rows of a tile that each row of ``which``, bool ``[16, 16]``, names; at most 0."""
    ones = tl.where(which, 1.0, 0.0).to(tl.bfloat16)
    return tl.minimum(product(ones, high, "tf32", product(ones, middle, "tf32", product(ones, low, "tf32"))), 0.0)


@triton.jit
def _on(rows, columns, PRECISION: tl.constexpr):
    """``rows @ columns^T`` of two tiles ``[16, K]``, float32 ``[16, 16]``.

    In slices of channels, one for each warp: a small square has no other work to share out, and a warp that holds
    all channels of both tiles spills.
    """
    K: tl.constexpr = rows.shape[1]
    part: tl.constexpr = min(K, 32)
    rows = tl.permute(tl.reshape(rows, [_BLOCK, K // part, part]), (1, 0, 2))
    columns = tl.permute(tl.reshape(columns, [_BLOCK, K // part, part]), (1, 2, 0))
    return tl.sum(product(rows, columns, PRECISION), axis=0)


@triton.jit
def _unit(x, scale):
    """Rows of ``x`` ``[16, K]`` as ``scale`` times unit vectors."""
    return x * (scale / tl.sqrt(tl.sum(x * x, axis=1, keep_dims=True) + L2_EPS))


@triton.jit
def _own_products(q, k, high, middle, low, beta, dtype: tl.constexpr, PRECISION: tl.constexpr):
    """Of 16 tokens: the inverse of the unit lower triangle of keys on keys, and that of queries on keys, ``[16, 16]``.

    By doubling, as on the CPU.  For blocks of 1, 2, 4 and 8 tokens, i in a right block and j in the left block beside
    it, the decay from j to i is the one since the right block began until i, times the one after j until the left
    block ends: one exponent for each token and channel.  Joining two blocks joins their inverses:
    ``[[L, 0], [A, R]]^-1 = [[L^-1, 0], [-R^-1 A L^-1, R^-1]]``, for all pairs at once.
    """
    at = tl.arange(0, _BLOCK)
    row, col = at[:, None], at[None, :]
    inverse = tl.where(row == col, 1.0, 0.0)
    inner = tl.where(row == col, tl.sum(q * k, axis=1)[:, None], 0.0)
    for level in range(4):  # not unrolled: masks of all levels at once would not fit into registers
        right = ((row >> level) & 1) == 1
        which = (row >> level == col >> level) & tl.where(right, col <= row, col > row)
        decay = tl.exp2(_summed(which, high, middle, low))
        keys = k * decay
        left = narrowed(tl.where(right, 0.0, keys), dtype)
        pair = (row > col) & ((row ^ col) >> level == 1)
        below = _on(narrowed(tl.where(right, q * decay, 0.0), dtype), left, PRECISION)
        inner += tl.where(pair, below, 0.0)
        below = _on(narrowed(tl.where(right, keys, 0.0), dtype), left, PRECISION)
        below = tl.where(pair, beta * below, 0.0)
        inverse -= product(product(inverse, below, PRECISION), inverse, PRECISION)
    return inverse, inner


@triton.jit
def within_kernel(
    q_ptr, k_ptr, v_ptr, f_ptr, beta_ptr, a_log_ptr, dt_bias_ptr, table_ptr,
    queries_ptr, keys_ptr, recall_ptr, given_ptr, inner_ptr, fade_ptr, steps_ptr,
    scale,
    q_token, q_head, k_token, k_head, v_token, v_head, f_token, f_head, beta_token, beta_head,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """One chunk of one head -> its part of :class:`Work`, sub-block after sub-block.

    Between sub-blocks a later token i and an earlier one j are apart by the decay since i's sub-block began, that
    after j until its sub-block ends, and those of the sub-blocks between.  All are sums of log decays <= 0, none a
    difference: no exponent is positive, and nothing is lost beside a token that forgets all.  The triangle of keys on
    keys is solved from the top, so only its 16 x 16 diagonal is ever inverted.
    """
    dtype: tl.constexpr = queries_ptr.dtype.element_ty
    head = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1).to(tl.int64)
    first = tl.load(table_ptr + 2 * chunk)
    count = tl.load(table_ptr + 2 * chunk + 1)
    row, col = tl.arange(0, _BLOCK)[:, None], tl.arange(0, _BLOCK)[None, :]
    channel, value = tl.arange(0, K), tl.arange(0, V)
    place = chunk * H + head
    queries_ptr += place * _CHUNK * K + channel
    keys_ptr += place * _CHUNK * K + channel
    recall_ptr += place * _CHUNK * K + channel
    given_ptr += place * _CHUNK * V + value
    inner_ptr += place * _CHUNK * _CHUNK + col
    steps_ptr += place * _BLOCKS * K + channel
    rate = tl.load(a_log_ptr + head)
    bias = tl.load(dt_bias_ptr + head * K + channel)[None, :]
    since = tl.full([K], 1.0, dtype=tl.float32)  # the decay from the start of the chunk to that of the sub-block
    for block in range(_BLOCKS):
        tl.debug_barrier()  # the sub-blocks before were stored by all threads, and are read by all
        inside = block * _BLOCK + row
        token, real = first + inside, inside < count
        # Padding decays nothing and writes nothing.  Log2, as exp2 is what the hardware has.
        g = log_decay(_loaded(f_ptr + token * f_token + head * f_head + channel, real), rate, bias)
        high, middle, low = _parts(tl.where(real, g * _LOG2_E, 0.0))
        q = _unit(_loaded(q_ptr + token * q_token + head * q_head + channel, real), scale)
        k = _unit(_loaded(k_ptr + token * k_token + head * k_head + channel, real), 1.0)
        beta = tl.where(real, sigmoid(_loaded(beta_ptr + token * beta_token + head * beta_head, real)), 0.0)
        inverse, inner = _own_products(q, k, high, middle, low, beta, dtype, PRECISION)
        tl.store(inner_ptr + inside * _CHUNK + block * _BLOCK, narrowed(inner, dtype))

        tl.store(keys_ptr + inside * K, narrowed(k * tl.exp2(_summed(col > row, high, middle, low)), dtype))
        decay = tl.exp2(_summed(col <= row, high, middle, low))
        q, k = q * decay, k * (beta * decay)
        tl.store(queries_ptr + inside * K, narrowed(q * since[None, :], dtype))
        given = beta * _loaded(v_ptr + token * v_token + head * v_head + value, real)
        recall, given = _solved(
            q, k, k * since[None, :], given, inside, block,
            keys_ptr, recall_ptr, given_ptr, inner_ptr, steps_ptr, PRECISION,
        )  # fmt: skip
        tl.store(recall_ptr + inside * K, narrowed(product(inverse, recall, PRECISION), dtype))
        tl.store(given_ptr + inside * V, narrowed(product(inverse, given, PRECISION), dtype))
        # Past the last real token nothing decays, so the last row has the decay at the last real token.
        step = tl.sum(tl.where(row == _BLOCK - 1, decay, 0.0), axis=0)
        tl.store(steps_ptr + block * K, step)
        since *= step
    tl.store(fade_ptr + place * K + channel, since)
    tl.debug_barrier()
    _until_the_end(keys_ptr, steps_ptr, K, dtype)


@triton.jit
def _loaded(at, real):
    """What lies there, float32; zeros where no token is."""
    return tl.load(at, mask=real, other=0.0).to(tl.float32)


@triton.jit
def _solved(
    q, k, recall, given, inside, block,
    keys_ptr, recall_ptr, given_ptr, inner_ptr, steps_ptr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A sub-block's products on all earlier ones: stores those of queries, takes what keys recall from both sides.

    ``q`` and ``k`` are decayed since the sub-block began, what ``keys_ptr`` has until its own sub-block ends.
    """
    dtype: tl.constexpr = keys_ptr.dtype.element_ty
    K: tl.constexpr = recall.shape[1]
    V: tl.constexpr = given.shape[1]
    row = tl.arange(0, _BLOCK)[:, None]
    between = tl.full([K], 1.0, dtype=tl.float32)
    for back in range(1, block + 1):
        there = block - back
        earlier = there * _BLOCK + row
        left = tl.load(keys_ptr + earlier * K)
        seen = _on(narrowed(q * between[None, :], dtype), left, PRECISION)
        tl.store(inner_ptr + inside * _CHUNK + there * _BLOCK, narrowed(seen, dtype))
        below = narrowed(_on(narrowed(k * between[None, :], dtype), left, PRECISION), dtype)
        recall -= product(below, tl.load(recall_ptr + earlier * K), PRECISION)
        given -= product(below, tl.load(given_ptr + earlier * V), PRECISION)
        between *= tl.load(steps_ptr + there * K)
    for ahead in range(block + 1, _BLOCKS):
        tl.store(inner_ptr + inside * _CHUNK + ahead * _BLOCK, tl.zeros([_BLOCK, _BLOCK], dtype=dtype))
    return recall, given


@triton.jit
def _until_the_end(keys_ptr, steps_ptr, K: tl.constexpr, dtype: tl.constexpr):
    """Keys decayed until their sub-block ends -> until the chunk ends."""
    row = tl.arange(0, _BLOCK)[:, None]
    after = tl.full([K], 1.0, dtype=tl.float32)
    for back in range(1, _BLOCKS):
        after *= tl.load(steps_ptr + (_BLOCKS - back) * K)
        mine = keys_ptr + ((_BLOCKS - 1 - back) * _BLOCK + row) * K
        tl.store(mine, narrowed(tl.load(mine).to(tl.float32) * after[None, :], dtype))


def precision(dtype: torch.dtype) -> str:
    """How matrix products of float32 numbers are done: as exact as the activations deserve."""
    return "tf32x3" if dtype == torch.float32 else "tf32"


def kda_within(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    beta: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    table: Tensor,
    work: Work,
    *,
    scale: float,
) -> None:
    """Fill the first C chunks of ``work`` with the chunks of ``table``, int64 ``[C, 2]``: first token, tokens.

    The other arguments are those of :func:`evalgate.kernels.gpu.kda_prefill.kda_prefill`.
    """
    heads, width, values = q.shape[1], q.shape[2], v.shape[2]
    within_kernel[heads, len(table)](
        q, k, v, f, beta, a_log, dt_bias, table, *work,
        scale,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *f.stride()[:2], *beta.stride(),
        H=heads, K=width, V=values, PRECISION=precision(v.dtype),
        num_warps=WARPS[v.dtype], num_stages=1,
    )  # fmt: skip


def published() -> tuple[Launch, ...]:
    """At 32 heads of 128, bfloat16."""
    raw = ("q", "k", "v", "f", "beta")
    floats = {f"{name}_ptr": "*bf16" for name in (*raw, "queries", "keys", "recall", "given", "inner")}
    strides = {f"{name}_{what}": "i32" for name in raw for what in ("token", "head")}
    narrow = {
        "a_log_ptr": "*fp32",
        "dt_bias_ptr": "*fp32",
        "fade_ptr": "*fp32",
        "steps_ptr": "*fp32",
        "table_ptr": "*i64",
        "scale": "fp32",
    }
    sizes: dict[str, object] = {"H": 32, "K": 128, "V": 128, "PRECISION": "tf32"}
    del strides["beta_head"]
    return (
        Launch(
            "kda_prefill within chunks",
            within_kernel,
            floats | strides | narrow,
            {**sizes, "beta_head": 1},
            WARPS[torch.bfloat16],
            1,
            "heads x chunks",
            tuple(strides),
        ),
    )
