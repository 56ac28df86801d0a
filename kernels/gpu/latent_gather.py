"""Paged latents of a run of positions as one dense tensor of numbers, ready for a matrix product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalgate.kernels.gpu.launch import Launch
from evalgate.kernels.gpu.paged_latents import Stored, numbers, rows_of
from evalgate.kernels.gpu.rounding import narrowed

GATHERED = 16
"""Rows that one program gathers."""
WARPS, STAGES = 4, 3


@triton.jit
def _gather(
    latents,
    scales,
    table,
    dense,
    start,
    size,
    latent_row,
    scale_row,
    table_row,
    capacity,
    L: tl.constexpr,
    R: tl.constexpr,
    PAGE: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
):
    table_of = tl.program_id(1).to(tl.int64)
    low = tl.program_id(0) * ROWS
    at = low + tl.arange(0, ROWS)
    end = tl.minimum(start + size, capacity)
    # Blocks lie on the grid of positions: start is a multiple of ROWS.
    row = rows_of(table + table_of * table_row, start + low, end, start + at < end, PAGE, ROWS)
    there = row >= 0
    wide, narrow = tl.arange(0, WIDE), tl.arange(0, NARROW)
    place = (latents + row * latent_row)[:, None]
    key = tl.load(place + wide[None, :], mask=there[:, None] & (wide < L)[None, :], other=0.0)
    side = tl.load(place + L + narrow[None, :], mask=there[:, None] & (narrow < R)[None, :], other=0.0)
    key, side = numbers(key, tl.float32), numbers(side, tl.float32)
    if SCALED:
        key *= tl.load(scales + row * scale_row, mask=there, other=0.0)[:, None]
        side *= tl.load(scales + row * scale_row + 1, mask=there, other=0.0)[:, None]
    # A position that has no latent gets zeros: it is seen by no one, and yet multiplied.
    target = dense + (table_of * size + at)[:, None] * (L + R)
    written = (at < size)[:, None]
    kind = dense.dtype.element_ty
    tl.store(target + wide[None, :], narrowed(key, kind), mask=written & (wide < L)[None, :])
    tl.store(target + L + narrow[None, :], narrowed(side, kind), mask=written & (narrow < R)[None, :])


def gathered(held: Stored, table: Tensor, keys: range, latent: int, page: int, dtype: torch.dtype) -> Tensor:
    """Latents of the positions ``keys`` as numbers of ``dtype``, ``[B, S, L + R]``; zeros where a table has no page.

    ``keys`` starts at a multiple of GATHERED; ``table`` is int32 or int64 ``[B, P]``.
    """
    width = held.codes.shape[1]
    dense = held.codes.new_empty(len(table), len(keys), width, dtype=dtype)
    _gather[(triton.cdiv(len(keys), GATHERED), len(table))](
        held.codes,
        held.scales,
        table,
        dense,
        keys.start,
        len(keys),
        held.codes.stride(0),
        held.scales.stride(0),
        table.stride(0),
        table.shape[1] * page,
        L=latent,
        R=width - latent,
        PAGE=page,
        SCALED=held.scaled,
        ROWS=GATHERED,
        WIDE=triton.next_power_of_2(latent),
        NARROW=triton.next_power_of_2(width - latent),
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return dense


def gather_launches() -> tuple[Launch, ...]:
    """Pages of 64 and 16 tokens, bf16 and 8-bit latents."""
    return (
        _launch("mla_prefill gather", "bf16", 64),
        _launch("mla_prefill gather page 16", "bf16", 16),
        _launch("mla_prefill gather int8", "i8", 64),
        _launch("mla_prefill gather fp8", "u8", 64),
    )


def _launch(name: str, codes: str, page: int) -> Launch:
    scaled = codes != "bf16"
    signature = {
        "latents": f"*{codes}",
        "scales": "*fp32" if scaled else f"*{codes}",
        "table": "*i64",
        "dense": "*bf16",
        **dict.fromkeys(("start", "size", "latent_row", "scale_row", "table_row", "capacity"), "i32"),
    }
    constants: dict[str, object] = {
        "L": 512,
        "R": 64,
        "PAGE": page,
        "SCALED": scaled,
        "ROWS": GATHERED,
        "WIDE": 512,
        "NARROW": 64,
    }
    aligned = ("start", "size", "latent_row", "capacity")
    return Launch(name, _gather, signature, constants, WARPS, STAGES, "512 x tables a tile", multiples_of_16=aligned)
