"""Latent attention of stretches of queries on the GPU: the keys of paged latents are expanded tile by tile.

Expanding a key for H heads takes ``L (N + V)`` multiplications a head, once for all queries of a pass, and attending to
it then ``N + R + V`` for each query; attending to latents as they lie takes ``2 L + R`` for each query and expands
nothing.  At the published widths that is 131,072 + 320 T against 1,088 T: from 171 queries on a key, expanding takes
less, and of a pass of 2,048 queries about a third.  Fewer queries over a long past are better given to ``mla_decode``
as rows that share it.  Only one tile is ever expanded, so memory does not grow with the context.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

from evalgate.kernels.gpu.latent_gather import GATHERED, gather_launches, gathered
from evalgate.kernels.gpu.launch import Launch
from evalgate.kernels.gpu.lse_merge import finite, join
from evalgate.kernels.gpu.paged_latents import capability, operand, stored
from evalgate.kernels.gpu.rounding import narrowed
from evalgate.kernels.lse_merge import Part

TILE = 8192
"""Positions that are expanded at a time: 128 MiB of keys and values at the published widths, for each table row."""
UNLIMITED = 2**62
"""A window that hides nothing, or a position that no query reaches."""
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


class Stretches(NamedTuple):
    """B runs of packed queries: where they stand, and which positions they see besides causality.

    Positions count rows of the cache.  A query at position t sees position s where ``s <= t``, and with ``rules``
    ``s >= min(t + 1, end) - window`` and not (``t >= end`` and ``hole_start <= s < hole_stop``).
    """

    offsets: Tensor
    """int64 ``[B + 1]``: run b is the queries from ``offsets[b]`` up to ``offsets[b + 1]``."""
    start: Tensor
    """int64 ``[B]``: the position of each run's first query."""
    longest: int
    """No run has more queries."""
    keys: range
    """No query sees a position outside."""
    rules: Tensor | None = None
    """int64 ``[B, 4]``: window, end (of the context), hole_start, hole_stop; UNLIMITED where there is none."""


class Blocks(NamedTuple):
    """How the work of one program is cut."""

    queries: int
    keys: int
    warps: int
    stages: int


LARGE = Blocks(128, 64, 8, 3)
MIDDLE = Blocks(64, 64, 8, 3)
"""sm_80, whose matrix instructions hold their operands in registers."""
SMALL = Blocks(32, 32, 4, 2)
"""float32, which is there for comparison, wide heads, and chips with less than 100 KiB of shared memory."""


@triton.jit
def _attend_block(
    mean, top, total, q_nope, q_side, keys, values, sides, at, stop, key_row, side_row,
    t, floor, holed, hole_start, hole_stop, exponent,
    N: tl.constexpr, R: tl.constexpr, V: tl.constexpr,
    NOPE: tl.constexpr, NARROW: tl.constexpr, VALUE: tl.constexpr,
    KEYS: tl.constexpr, MASKED: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """One block of KEYS rows of the tile from ``at`` on; ``MASKED``: some query may not see some of them."""
    s = at + tl.arange(0, KEYS)
    there = s < stop
    row = s.to(tl.int64)
    nope, narrow, value = tl.arange(0, NOPE), tl.arange(0, NARROW), tl.arange(0, VALUE)
    if MASKED:
        k_mask, s_mask, v_mask = (
            there[:, None] & (nope < N)[None, :],
            there[:, None] & (narrow < R)[None, :],
            there[:, None] & (value < V)[None, :],
        )
    else:
        k_mask, s_mask, v_mask = (nope < N)[None, :], (narrow < R)[None, :], (value < V)[None, :]
    key = tl.load(keys + (row * key_row)[:, None] + nope[None, :], mask=k_mask, other=0.0).to(OPERAND)
    side = tl.load(sides + (row * side_row)[:, None] + narrow[None, :], mask=s_mask, other=0.0).to(OPERAND)
    scores = tl.dot(q_nope, tl.trans(key), input_precision="ieee")
    scores = tl.dot(q_side, tl.trans(side), scores, input_precision="ieee")
    if MASKED:
        seen = (s[None, :] <= t[:, None]) & (s[None, :] >= floor[:, None]) & there[None, :]
        hidden = holed[:, None] & ((s >= hole_start) & (s < hole_stop))[None, :]
        scores = tl.where(seen & ~hidden, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, axis=1))
    reference = finite(higher)
    # Subtracted before anything is multiplied: of large scores, the difference is what counts.
    faded = tl.exp2((top - reference) * exponent)
    weights = tl.exp2((scores - reference[:, None]) * exponent)
    total = total * faded + tl.sum(weights, axis=1)
    worth = tl.load(values + (row * key_row)[:, None] + value[None, :], mask=v_mask, other=0.0)
    weights = narrowed(weights, worth.dtype).to(OPERAND)
    mean = tl.dot(weights, worth.to(OPERAND), mean * faded[:, None], input_precision="ieee")
    return mean, higher, total


@triton.jit
def _within(position: tl.tensor, size: tl.tensor) -> tl.tensor:
    """A position counted from the tile's start, in 32 bits: all before the tile are alike, and all after it."""
    return tl.minimum(tl.maximum(position, -1), size).to(tl.int32)


@triton.jit
def _attend(
    q, expanded, dense, offsets, starts, rules, output, lse,
    scale, origin, size, heads,
    q_row, q_head, key_batch, key_row, side_batch, side_row,
    N: tl.constexpr, R: tl.constexpr, V: tl.constexpr, L: tl.constexpr,
    NOPE: tl.constexpr, NARROW: tl.constexpr, VALUE: tl.constexpr,
    RULED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    head, run = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first_row = tl.load(offsets + run)
    count = tl.load(offsets + run + 1) - first_row
    # The last queries see most; they start first.
    low = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    if low >= count:
        return
    index = low + tl.arange(0, QUERIES)
    real = index < count
    # Positions count from the tile's first from here on: they fit into 32 bits, which takes half the registers.
    start = tl.load(starts + run) - origin
    last = _within(start + tl.minimum(low + QUERIES, count) - 1, size)
    t = _within(start + index, size)
    stop = tl.minimum(last + 1, size)
    if RULED:
        window, edge = tl.load(rules + run * 4), tl.load(rules + run * 4 + 1) - origin
        hole_start = _within(tl.load(rules + run * 4 + 2) - origin, size)
        hole_stop = _within(tl.load(rules + run * 4 + 3) - origin, size)
        holed = start + index >= edge
        floor = _within(tl.minimum(start + index + 1, edge) - window, size)
        low_key = tl.maximum(_within(tl.minimum(start + low + 1, edge) - window, size), 0)
        all_see = tl.maximum(_within(tl.minimum(start + tl.minimum(low + QUERIES, count), edge) - window, size), 0)
        no_hole = (start + tl.minimum(low + QUERIES, count) <= edge) | (hole_start >= stop) | (hole_stop <= low_key)
    else:
        hole_start, hole_stop, holed, floor = 0, 0, index < 0, index * 0
        low_key, all_see, no_hole = 0, 0, True
    if low_key >= stop:
        return
    # Blocks [before, before + whole) from low_key on are seen by every query of the program.
    before = tl.cdiv(all_see - low_key, KEYS)
    whole = (tl.minimum(stop, _within(start + low, size) + 1) - low_key) // KEYS - before
    whole = tl.where(no_hole, tl.maximum(whole, 0), 0)
    blocks = tl.cdiv(stop - low_key, KEYS)

    token = first_row + index
    nope, narrow, value = tl.arange(0, NOPE), tl.arange(0, NARROW), tl.arange(0, VALUE)
    at_query = (q + token * q_row + head.to(tl.int64) * q_head)[:, None]
    q_nope = tl.load(at_query + nope[None, :], mask=real[:, None] & (nope < N)[None, :], other=0.0).to(OPERAND)
    q_side = tl.load(at_query + N + narrow[None, :], mask=real[:, None] & (narrow < R)[None, :], other=0.0).to(OPERAND)
    keys = expanded + run * key_batch + head * (N + V)
    values, sides = keys + N, dense + run * side_batch + L
    exponent = scale * LOG2E
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mean = tl.zeros([QUERIES, VALUE], tl.float32)
    for block in range(whole):
        mean, top, total = _attend_block(
            mean, top, total, q_nope, q_side, keys, values, sides, low_key + (before + block) * KEYS, stop,
            key_row, side_row, t, floor, holed, hole_start, hole_stop, exponent,
            N, R, V, NOPE, NARROW, VALUE, KEYS, False, OPERAND,
        )  # fmt: skip
    for block in range(blocks - whole):
        number = tl.where(block < before, block, block + whole)
        mean, top, total = _attend_block(
            mean, top, total, q_nope, q_side, keys, values, sides, low_key + number * KEYS, stop,
            key_row, side_row, t, floor, holed, hole_start, hole_stop, exponent,
            N, R, V, NOPE, NARROW, VALUE, KEYS, True, OPERAND,
        )  # fmt: skip

    place = token * heads + head
    at_mean = (output + place * V)[:, None] + value[None, :]
    join(at_mean, lse + place, mean, finite(top) * scale, total, real, real[:, None] & (value < V)[None, :])


def mla_prefill(
    q: Tensor,
    latents: Tensor,
    table: Tensor,
    expand: Tensor,
    runs: Stretches,
    *,
    scale: float,
    page: int,
    scales: Tensor | None = None,
    shared: int = 0,
    tile: int = TILE,
) -> Part:
    """Causal attention of packed queries ``[T, H, N + R]`` to the cached latents of their runs, their own included.

    Head h expands a latent to the key ``[W_k c_s ; r_s]`` and the value ``W_v c_s``; ``expand`` is ``[H, N + V, L]``,
    the rows of ``W_k`` before those of ``W_v``.  The result is ``softmax(scale * q . k_s)``-weighted means of the
    values, ``[T, H, V]`` in the type of ``q``, and the natural log of the sums of exponentials, float32 ``[T, H]``;
    queries of no run get 0 and -inf.  Latents, scales and ``table`` ``[B, P]`` are as in ``mla_decode``; every visible
    position has a page.

    The pages of the first ``shared`` positions, a multiple of ``page``, are the same for all runs and expanded once.
    """
    tokens, heads, width = q.shape
    latent = expand.shape[-1]
    side = latents.shape[1] - latent
    value = expand.shape[1] - (width - side)
    assert scale > 0, f"mla_prefill: scale {scale}"
    assert len(expand) == heads, f"mla_prefill: {heads} heads, {len(expand)} expansions"
    assert min(side, value, width - side) > 0, f"mla_prefill: {q.shape}, {latents.shape}, {expand.shape}"
    assert q.stride(-1) == 1, f"mla_prefill: the entries of a query must lie side by side, not {q.stride()}"
    assert shared % page == 0, f"mla_prefill: {shared} shared positions are not whole pages"
    assert tile % GATHERED == 0, f"mla_prefill: tiles of {tile}"
    held, joined = stored(latents, scales), expand.flatten(0, 1)
    found = Part(
        q.new_zeros(tokens, heads, value, dtype=torch.float32),
        q.new_full((tokens, heads), -torch.inf, dtype=torch.float32),
    )
    if tokens and runs.longest:
        for keys in _tiles(runs.keys, shared, tile):
            pages = table[:1] if keys.stop <= shared else table
            dense = gathered(held, pages, keys, latent, page, q.dtype)
            _attended(q, linear(dense[..., :latent], joined), dense, runs, found, keys, scale=scale)
    return Part(found.output.to(q.dtype), found.lse)


def _tiles(keys: range, shared: int, tile: int) -> Iterator[range]:
    """``keys`` from a multiple of GATHERED on, none across the end of what is shared."""
    start = keys.start - keys.start % GATHERED
    while start < keys.stop:
        stop = min(start + tile, keys.stop, shared if start < shared else keys.stop)
        yield range(start, stop)
        start = stop


def _attended(
    q: Tensor, expanded: Tensor, dense: Tensor, runs: Stretches, found: Part, keys: range, *, scale: float
) -> None:
    """Join one tile into what was found."""
    _, heads, value = found.output.shape
    nope = expanded.shape[-1] // heads - value
    side = q.shape[-1] - nope
    alike = len(dense) == 1
    blocks = blocks_of(capability(q), max(nope, side, value), q.dtype)
    _attend[(triton.cdiv(runs.longest, blocks.queries), heads, len(runs.start))](
        q,
        expanded,
        dense,
        runs.offsets,
        runs.start,
        runs.start if runs.rules is None else runs.rules,
        found.output,
        found.lse,
        scale,
        keys.start,
        len(keys),
        heads,
        q.stride(0),
        q.stride(1),
        0 if alike else expanded.stride(0),
        expanded.stride(1),
        0 if alike else dense.stride(0),
        dense.stride(1),
        N=nope,
        R=side,
        V=value,
        L=dense.shape[-1] - side,
        NOPE=_block(nope),
        NARROW=_block(side),
        VALUE=_block(value),
        RULED=runs.rules is not None,
        QUERIES=blocks.queries,
        KEYS=blocks.keys,
        OPERAND=operand(q.dtype, _attend),
        num_warps=blocks.warps,
        num_stages=blocks.stages,
    )


def blocks_of(chip: int, width: int, dtype: torch.dtype) -> Blocks:
    """What no chip spills and the chip's shared memory has room for; ``chip`` is its compute capability x 10."""
    if width > 128 or dtype != torch.bfloat16 or chip in {86, 89, 120}:
        return SMALL
    return MIDDLE if chip < 100 else LARGE


def _block(width: int) -> int:
    """The least that a matrix product takes, and a power of 2."""
    power: int = triton.next_power_of_2(width)
    return max(16, power)


def published() -> tuple[Launch, ...]:
    """Tiles of pages of 64 and 16 tokens, bf16 and 8-bit latents; attention with and without rules."""
    return (
        *gather_launches(),
        _attend_launch("mla_prefill attend", LARGE, ruled=False),
        _attend_launch("mla_prefill attend ruled", LARGE, ruled=True),
        _attend_launch("mla_prefill attend narrow", MIDDLE, ruled=False),
        _attend_launch("mla_prefill attend narrow ruled", MIDDLE, ruled=True),
    )


def _attend_launch(name: str, blocks: Blocks, *, ruled: bool) -> Launch:
    strides = ("q_row", "q_head", "key_batch", "key_row", "side_batch", "side_row")
    signature = {
        **dict.fromkeys(("q", "expanded", "dense"), "*bf16"),
        **dict.fromkeys(("offsets", "starts", "rules"), "*i64"),
        **dict.fromkeys(("output", "lse"), "*fp32"),
        "scale": "fp32",
        **dict.fromkeys(("origin", "size", "heads", *strides), "i32"),
    }
    constants: dict[str, object] = {
        "N": 128,
        "R": 64,
        "V": 128,
        "L": 512,
        "NOPE": 128,
        "NARROW": 64,
        "VALUE": 128,
        "RULED": ruled,
        "QUERIES": blocks.queries,
        "KEYS": blocks.keys,
        "OPERAND": tl.bfloat16,
    }
    aligned = ("origin", "size", "heads", *strides)
    grid = f"blocks of {blocks.queries} queries x heads x runs a tile"
    # Of the large blocks sm_80 and sm_90 would spill some bytes.
    chips = ("sm_80", "sm_90") if blocks == MIDDLE else ("sm_100",)
    return Launch(
        name, _attend, signature, constants, blocks.warps, blocks.stages, grid, multiples_of_16=aligned, chips=chips
    )
