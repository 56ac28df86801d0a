"""Latent attention of one new token for each row on the GPU: absorbed queries over paged latents, in splits.

The caller multiplies with the expansions: ``W_k^T q`` before, ``W_v o`` after.  A latent is loaded once and is both key
and value.  Programs share a long row by splitting it, and what they found is joined by ``lse_merge``.  How a row is
split follows from its own length alone, so its result does not depend on who else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalgate.kernels.gpu.launch import Launch
from evalgate.kernels.gpu.lse_merge import UNIT, finished, finite, log_sum, lse_merge
from evalgate.kernels.gpu.paged_latents import Stored, capability, numbers, operand, rows_of, stored
from evalgate.kernels.gpu.rounding import narrowed
from evalgate.kernels.lse_merge import Part

SPLITS = 128
"""Splits of one row at most: about one for each multiprocessor of a large chip."""
SHORTEST = 512
"""Positions of a split at least; a shorter one costs more in parts to be joined than it saves."""
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
_SPLITS: tl.constexpr = tl.constexpr(SPLITS)
_SHORTEST: tl.constexpr = tl.constexpr(SHORTEST)


@dataclass(frozen=True, slots=True)
class Shared:
    """Prefixes that groups of neighbouring rows see before their own positions, each read once for its group."""

    table: Tensor
    """int32 or int64 ``[G, P]`` page numbers."""
    first: Tensor
    """int64 ``[G]``: the first position that is seen."""
    count: Tensor
    """int64 ``[G]`` positions that are seen."""
    rows: Tensor
    """int64 ``[G + 1]``, ascending: group g is the rows from ``rows[g]`` up to ``rows[g + 1]``."""


class Blocks(NamedTuple):
    """How the work of one program is cut."""

    queries: int
    """Query vectors of a program, a power of 2; a row has one for each head."""
    keys: int
    warps: int
    stages: int


PLAIN = Blocks(32, 32, 8, 4)
"""A row's 32 heads at a time: three copies of 32 latents lie in shared memory while they are worked on."""
CODED = Blocks(16, 32, 4, 3)
"""8-bit latents, whose numbers take registers besides: half as many queries, and two programs on a multiprocessor."""
BY_HAND = Blocks(16, 32, 4, 2)
"""The same on sm_80, with less shared memory, and where float8_e4m3fn is converted by hand, with fewer registers."""
SMALL = Blocks(16, 32, 4, 2)
"""float32, which is there for comparison, and chips with less than 100 KiB of shared memory."""


@triton.jit
def _span(first, count, split, KEYS: tl.constexpr):
    """The first position that is seen, and the positions ``[begin, end)`` of a split; none where the row has fewer."""
    offset = tl.load(first)
    stop = offset + tl.load(count)
    # Blocks of keys lie on the grid of positions, so that one never straddles pages without need.
    start = offset - offset % KEYS
    # Of the row's own length alone: see the module's docstring.
    length = tl.maximum(tl.cdiv(tl.cdiv(stop - start, _SPLITS), KEYS) * KEYS, _SHORTEST)
    begin = start + split * length
    return offset, begin, tl.minimum(begin + length, stop)


@triton.jit
def _attend(
    q,
    latents,
    scales,
    table,
    first,
    count,
    rows,
    output,
    lse,
    scale,
    q_row,
    q_head,
    latent_row,
    scale_row,
    table_row,
    heads,
    parts,
    part,
    L: tl.constexpr,
    R: tl.constexpr,
    PAGE: tl.constexpr,
    GROUPED: tl.constexpr,
    SCALED: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    OPERAND: tl.constexpr,
):
    split = tl.program_id(1)
    group = tl.program_id(2).to(tl.int64)
    offset, begin, end = _span(first + group, count + group, split, KEYS)
    if begin >= end:
        return
    if GROUPED:
        low, high = tl.load(rows + group) * heads, tl.load(rows + group + 1) * heads
    else:
        low, high = group * heads, (group + 1) * heads
    query = low + tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    real = query < high
    if low + tl.program_id(0) * QUERIES >= high:
        return
    wide, narrow = tl.arange(0, WIDE), tl.arange(0, NARROW)
    at_query = q + (query // heads) * q_row + (query % heads) * q_head
    q_wide = tl.load(at_query[:, None] + wide[None, :], mask=real[:, None] & (wide < L)[None, :], other=0.0)
    q_narrow = tl.load(at_query[:, None] + L + narrow[None, :], mask=real[:, None] & (narrow < R)[None, :], other=0.0)
    q_wide, q_narrow = q_wide.to(OPERAND), q_narrow.to(OPERAND)

    pages = table + group * table_row
    exponent = scale * LOG2E
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mean = tl.zeros([QUERIES, WIDE], tl.float32)
    for at in range(begin, end, KEYS):
        position = at + tl.arange(0, KEYS)
        row = rows_of(pages, at, end, (position >= offset) & (position < end), PAGE, KEYS)
        there = row >= 0
        place = latents + row * latent_row
        key = tl.load(place[:, None] + wide[None, :], mask=there[:, None] & (wide < L)[None, :], other=0.0)
        side = tl.load(place[:, None] + L + narrow[None, :], mask=there[:, None] & (narrow < R)[None, :], other=0.0)
        key, side = numbers(key, OPERAND), numbers(side, OPERAND)
        scores = tl.dot(q_wide, tl.trans(key), input_precision="ieee")
        if SCALED:
            wide_scale = tl.load(scales + row * scale_row, mask=there, other=0.0)
            narrow_scale = tl.load(scales + row * scale_row + 1, mask=there, other=0.0)
            from_side = tl.dot(q_narrow, tl.trans(side), input_precision="ieee")
            scores = scores * wide_scale[None, :] + from_side * narrow_scale[None, :]
        else:
            scores = tl.dot(q_narrow, tl.trans(side), scores, input_precision="ieee")
        scores = tl.where(there[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        reference = finite(higher)
        # Subtracted before anything is multiplied: of large scores, the difference is what counts.
        faded = tl.exp2((top - reference) * exponent)
        weights = tl.exp2((scores - reference[:, None]) * exponent)
        total = total * faded + tl.sum(weights, axis=1)
        if SCALED:
            weights = weights * wide_scale[None, :]
        mean = tl.dot(
            narrowed(weights, q.dtype.element_ty).to(OPERAND), key, mean * faded[:, None], input_precision="ieee"
        )
        top = higher

    place = query * parts + part + split
    mean = mean / finished(total)[:, None]
    tl.store(output + place[:, None] * L + wide[None, :], mean, mask=real[:, None] & (wide < L)[None, :])
    tl.store(lse + place, log_sum(finite(top) * scale, total), mask=real)


def mla_decode(
    q: Tensor,
    latents: Tensor,
    table: Tensor,
    first: Tensor,
    count: Tensor,
    *,
    scale: float,
    latent_width: int,
    page: int,
    scales: Tensor | None = None,
    shared: Shared | None = None,
) -> Part:
    """Attend with absorbed queries ``[B, H, L + R]`` to the latents of each row's positions; ``L`` is latent_width.

    ``softmax(scale * q . [c_s ; r_s])``-weighted means of ``c_s``, ``[B, H, L]`` in the type of ``q``, and the natural
    log of the sums of exponentials, float32 ``[B, H]``.  Row b sees positions ``[first[b], first[b] + count[b])``
    (int64); position s lies in row ``table[b, s // page] * page + s % page`` of ``latents`` ``[rows, L + R]``: float32,
    bfloat16, or int8 or float8_e4m3fn codes with float32 ``scales`` ``[rows, 2]`` of the two parts.  A page of -1 is
    seen by no one.  What ``shared`` lists is seen besides.  A row that sees nothing gets 0 and -inf.

    Parts to be joined take ``B * H * L`` floats for each 512 positions that the tables have room for, up to 128 times.
    """
    batch, heads, width = q.shape
    assert scale > 0, f"mla_decode: scale {scale}"
    assert latents.shape[1] == width > latent_width, f"mla_decode: {q.shape}, {latents.shape}, {latent_width}"
    assert q.stride(-1) == 1, f"mla_decode: the entries of a query must lie side by side, not {q.stride()}"
    held = stored(latents, scales)
    own = _parts(table, page)
    common = 0 if shared is None else _parts(shared.table, page)
    # Splits that see nothing write nothing: their logs stay -inf, and their means are never read.
    lse = q.new_full((batch, heads, own + common), -torch.inf, dtype=torch.float32)
    output = q.new_empty(batch, heads, own + common, latent_width, dtype=torch.float32)
    found = Part(output, lse)
    alone = Shared(table, first, count, first)
    _launch(q, held, alone, found, Span(0, own, heads), scale=scale, page=page, grouped=False)
    if shared is not None:
        _launch(q, held, shared, found, Span(own, common, batch * heads), scale=scale, page=page, grouped=True)
    return lse_merge(found, q.dtype)


class Span(NamedTuple):
    """Which parts a launch writes, and how many query vectors a group of it has at most."""

    start: int
    parts: int
    queries: int


def _parts(table: Tensor, page: int) -> int:
    """Splits that the positions of a table may need, in whole units of what is joined together."""
    needed: int = triton.cdiv(min(SPLITS, triton.cdiv(table.shape[1] * page, SHORTEST)), UNIT)
    return needed * UNIT


def _launch(
    q: Tensor, held: Stored, seen: Shared, found: Part, span: Span, *, scale: float, page: int, grouped: bool
) -> None:
    _, heads, parts, width = found.output.shape
    blocks = blocks_of(capability(q), width, q.dtype, held.codes.dtype)
    groups = len(seen.count)
    if not groups or not span.parts:
        return
    _attend[(triton.cdiv(span.queries, blocks.queries), span.parts, groups)](
        q,
        held.codes,
        held.scales,
        seen.table,
        seen.first,
        seen.count,
        seen.rows,
        found.output,
        found.lse,
        scale,
        q.stride(0),
        q.stride(1),
        held.codes.stride(0),
        held.scales.stride(0),
        seen.table.stride(0),
        heads,
        parts,
        span.start,
        L=width,
        R=q.shape[2] - width,
        PAGE=page,
        GROUPED=grouped,
        SCALED=held.scaled,
        QUERIES=blocks.queries,
        KEYS=blocks.keys,
        WIDE=_block(width),
        NARROW=_block(q.shape[2] - width),
        OPERAND=operand(q.dtype, _attend),
        num_warps=blocks.warps,
        num_stages=blocks.stages,
    )


def _block(width: int) -> int:
    """The least that a matrix product takes, and a power of 2."""
    power: int = triton.next_power_of_2(width)
    return max(16, power)


def blocks_of(chip: int, width: int, dtype: torch.dtype, codes: torch.dtype) -> Blocks:
    """What no chip spills and the chip's shared memory has room for; ``chip`` is its compute capability x 10."""
    if width > 512 or dtype == torch.float32 or chip in {86, 89, 120}:
        return SMALL
    if codes.itemsize == 1:
        return BY_HAND if chip == 80 or codes == torch.uint8 else CODED
    return PLAIN


def published() -> tuple[Launch, ...]:
    """Pages of 64 and 16 tokens, bf16 and 8-bit latents, rows by themselves and a group over its shared prefix."""
    own, group = "1 x splits x batch", "blocks of 32 or 16 queries x splits x groups"
    return (
        _published("mla_decode", "bf16", PLAIN, own),
        _published("mla_decode page 16", "bf16", PLAIN, own, page=16),
        _published("mla_decode int8", "i8", CODED, own),
        _published("mla_decode int8 page 16", "i8", CODED, own, page=16),
        # As its bits, which is what chips before sm_89 take; later ones convert with fewer instructions.
        _published("mla_decode fp8", "u8", BY_HAND, own),
        _published("mla_decode shared", "bf16", PLAIN, group, grouped=True),
        _published("mla_decode shared int8", "i8", CODED, group, grouped=True),
    )


def _published(name: str, codes: str, blocks: Blocks, grid: str, *, page: int = 64, grouped: bool = False) -> Launch:
    scaled = codes != "bf16"
    signature = {
        **dict.fromkeys(("first", "count", "rows", "table"), "*i64"),
        **dict.fromkeys(("output", "lse"), "*fp32"),
        **dict.fromkeys(("q_row", "q_head", "latent_row", "scale_row", "table_row", "heads", "parts", "part"), "i32"),
        "q": "*bf16",
        "latents": f"*{codes}",
        "scales": "*fp32" if scaled else f"*{codes}",
        "scale": "fp32",
    }
    constants: dict[str, object] = {
        "L": 512,
        "R": 64,
        "PAGE": page,
        "GROUPED": grouped,
        "SCALED": scaled,
        "QUERIES": blocks.queries,
        "KEYS": blocks.keys,
        "WIDE": 512,
        "NARROW": 64,
        "OPERAND": tl.bfloat16,
    }
    strides = ("q_row", "q_head", "latent_row", "heads")
    return Launch(name, _attend, signature, constants, blocks.warps, blocks.stages, grid, multiples_of_16=strides)
