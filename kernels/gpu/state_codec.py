"""Stored forms of recurrent states on a GPU: float32, bfloat16, int8 and int4, read and written by slot.

A form is known by the dtype of its codes; the codes and scales are those of ``evalgate.kernels.state_codec``, bit for
bit: a scale for each key channel, quotients rounded half to even.  Low ranks are not here: torch decomposes them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalgate.kernels.gpu.launch import Launch
from evalgate.kernels.gpu.rounding import narrowed, to_integer

BITS = {torch.float32: 32, torch.bfloat16: 16, torch.int8: 8, torch.uint8: 4}
"""Bits of one number, by the dtype of the codes; uint8 holds two codes of 4 bits, the first one in the low half."""
TILE = 4096
"""Numbers that one program holds: 32 registers a thread."""


class StoredStates(NamedTuple):
    """States of one or all layers, ``[slots, H, K, V]`` or ``[layers, slots, H, K, V]``, any strides but the last.

    ``codes`` are float32 or bfloat16 numbers, int8 codes, or uint8 pairs of codes ``[..., K, V / 2]``.
    """

    codes: Tensor
    scales: Tensor | None = None
    """float32 ``[..., K]`` beside integer codes, else None."""


def encode(pool: Tensor, slots: Tensor, stored: StoredStates, stored_slots: Tensor) -> None:
    """Store the float32 states of ``pool`` at ``slots`` in ``stored`` at ``stored_slots``.

    ``pool`` is ``[slots, H, K, V]`` or ``[layers, slots, H, K, V]``; both lists are int64 ``[X]``.  An entry that is
    -1 in either of them is passed over.
    """
    _launch(_encode, pool, slots, stored, stored_slots)


def decode(stored: StoredStates, stored_slots: Tensor, pool: Tensor, slots: Tensor) -> None:
    """Restore states: ``pool`` at ``slots`` becomes what ``stored`` holds at ``stored_slots``; else as :func:`encode`.

    A scale that is NaN gives NaN.
    """
    _launch(_decode, pool, slots, stored, stored_slots)


def round_trip(pool: Tensor, slots: Tensor, bits: int) -> None:
    """Leave of the states at ``slots`` what storing them with 16, 8 or 4 bits would leave, in place.

    Shapes as in :func:`encode`; slots are distinct, -1 is passed over.
    """
    pool = pool if pool.dim() == 5 else pool.unsqueeze(0)
    heads, keys, values = pool.shape[2:]
    rows = _rows(keys, values)
    grid = (heads * keys // rows, len(slots), len(pool))
    _round_trip[grid](pool, slots, *pool.stride()[:4], K=keys, V=values, ROWS=rows, BITS=bits, num_warps=4)


def published() -> tuple[Launch, ...]:
    """All forms at 32 heads of 128 x 128, all layers of a slot in one launch."""
    width = 128
    shape = {"K": width, "V": width, "ROWS": _rows(width, width)}
    strides = {f"pool_{d}": "i64" for d in ("layer", "slot", "head", "key")}
    stored = strides | {f"{x}_{d}": "i64" for x in ("code", "scale") for d in ("layer", "slot", "head")}
    stored["code_key"] = "i64"
    grid = "heads x 4 blocks of 32 keys, states, layers"
    launches = []
    for bits, code in ((32, "*fp32"), (16, "*bf16"), (8, "*i8"), (4, "*u8")):
        constants: dict[str, object] = {**shape, "BITS": bits}
        pointers = {"pool": "*fp32", "slots": "*i64", "codes": code, "stored_slots": "*i64"}
        scaled: dict[str, str] = {"scales": "*fp32"} if bits <= 8 else {}
        bare: dict[str, object] = {} if bits <= 8 else {"scales": None}
        launches += [
            Launch(f"state_codec {name} {code[1:]}", kernel, pointers | scaled | stored, constants | bare, 4, 3, grid,
                   tuple(stored))
            for name, kernel in (("encode", _encode), ("decode", _decode))
        ]  # fmt: skip
        if bits < 32:
            signature = {"pool": "*fp32", "slots": "*i64"} | strides
            launches.append(
                Launch(f"state_codec round trip {code[1:]}", _round_trip, signature, constants, 4, 3, grid,
                       tuple(strides))
            )  # fmt: skip
    return tuple(launches)


def _rows(keys: int, values: int) -> int:
    return min(keys, max(TILE // values, 1))


def _launch(kernel, pool: Tensor, slots: Tensor, stored: StoredStates, stored_slots: Tensor) -> None:
    codes, scales = stored
    bits = BITS[codes.dtype]
    if pool.dim() == 4:
        pool, codes = pool.unsqueeze(0), codes.unsqueeze(0)
        scales = None if scales is None else scales.unsqueeze(0)
    heads, keys, values = pool.shape[2:]
    assert codes.shape[2:] == (heads, keys, values // 2 if bits == 4 else values), f"codes {codes.shape}"
    assert (bits <= 8) == (scales is not None), "integer codes have scales, floats have none"
    strides = (0, 0, 0) if scales is None else scales.stride()[:3]
    rows = _rows(keys, values)
    grid = (heads * keys // rows, len(slots), len(pool))
    kernel[grid](
        pool, slots, codes, scales, stored_slots, *pool.stride()[:4], *codes.stride()[:4], *strides,
        K=keys, V=values, ROWS=rows, BITS=bits, num_warps=4,
    )  # fmt: skip


@triton.jit
def row_scales(x: tl.tensor, TOP: tl.constexpr) -> tl.tensor:
    """Scale of each row of a float32 tile: its largest size over the largest code; NaN where the row holds one."""
    # Sizes of floats order as their bits do, and NaN is the largest: a maximum of floats would pass it over.
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.div_rn(tl.max(bits, axis=1).to(tl.float32, bitcast=True), TOP + 0.0)


@triton.jit
def row_codes(x: tl.tensor, scales: tl.tensor, TOP: tl.constexpr) -> tl.tensor:
    """Codes of a tile as float32 integers from -TOP to TOP; 0 where a row is NaN."""
    steps = tl.div_rn(x, tl.where(scales == 0.0, 1.0, scales)[:, None])
    steps = tl.where(steps == steps, steps, 0.0)  # noqa: PLR0124 - not true of NaN
    # A scale that is a denormal number is a rough one; without the clamp its largest codes would wrap around.
    steps = tl.minimum(tl.maximum(steps, -TOP), TOP)
    return to_integer(steps)


@triton.jit
def _pack(codes, ROWS: tl.constexpr, V: tl.constexpr):
    low, high = tl.split(tl.reshape((codes + 8.0).to(tl.uint8), (ROWS, V // 2, 2)))
    return low | (high << 4)


@triton.jit
def _unpack(packed, ROWS: tl.constexpr, V: tl.constexpr):
    codes = tl.join(packed & 15, packed >> 4)
    return tl.reshape(codes, (ROWS, V)).to(tl.float32) - 8.0


@triton.jit
def _place(ROWS: tl.constexpr, K: tl.constexpr):
    """Layer, head and key rows of this program; the entry is program 1."""
    blocks: tl.constexpr = K // ROWS
    head = (tl.program_id(0) // blocks).to(tl.int64)
    keys = (tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    return tl.program_id(2).to(tl.int64), head, keys


@triton.jit
def _encode(
    pool, slots, codes, scales, stored_slots, pool_layer, pool_slot, pool_head, pool_key,
    code_layer, code_slot, code_head, code_key, scale_layer, scale_slot, scale_head,
    K: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    layer, head, keys = _place(ROWS, K)
    source, target = tl.load(slots + tl.program_id(1)), tl.load(stored_slots + tl.program_id(1))
    if (source >= 0) & (target >= 0):
        pool += layer * pool_layer + source * pool_slot + head * pool_head
        codes += layer * code_layer + target * code_slot + head * code_head
        x = tl.load(pool + keys[:, None] * pool_key + tl.arange(0, V)[None, :])
        if BITS <= 8:
            top: tl.constexpr = 2 ** (BITS - 1) - 1
            scale = row_scales(x, top)
            tl.store(scales + layer * scale_layer + target * scale_slot + head * scale_head + keys, scale)
            x = row_codes(x, scale, top)
        if BITS == 4:
            tl.store(codes + keys[:, None] * code_key + tl.arange(0, V // 2)[None, :], _pack(x, ROWS, V))
        else:
            x = x.to(tl.int8) if BITS == 8 else narrowed(x, codes.dtype.element_ty)
            tl.store(codes + keys[:, None] * code_key + tl.arange(0, V)[None, :], x)


@triton.jit
def _decode(
    pool, slots, codes, scales, stored_slots, pool_layer, pool_slot, pool_head, pool_key,
    code_layer, code_slot, code_head, code_key, scale_layer, scale_slot, scale_head,
    K: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    layer, head, keys = _place(ROWS, K)
    target, source = tl.load(slots + tl.program_id(1)), tl.load(stored_slots + tl.program_id(1))
    if (source >= 0) & (target >= 0):
        pool += layer * pool_layer + target * pool_slot + head * pool_head
        codes += layer * code_layer + source * code_slot + head * code_head
        if BITS == 4:
            x = _unpack(tl.load(codes + keys[:, None] * code_key + tl.arange(0, V // 2)[None, :]), ROWS, V)
        else:
            x = tl.load(codes + keys[:, None] * code_key + tl.arange(0, V)[None, :]).to(tl.float32)
        if BITS <= 8:
            x *= tl.load(scales + layer * scale_layer + source * scale_slot + head * scale_head + keys)[:, None]
        tl.store(pool + keys[:, None] * pool_key + tl.arange(0, V)[None, :], x)


@triton.jit
def _round_trip(
    pool, slots, pool_layer, pool_slot, pool_head, pool_key,
    K: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    layer, head, keys = _place(ROWS, K)
    slot = tl.load(slots + tl.program_id(1))
    if slot >= 0:
        at = pool + layer * pool_layer + slot * pool_slot + head * pool_head
        at = at + keys[:, None] * pool_key + tl.arange(0, V)[None, :]
        x = tl.load(at)
        if BITS == 16:
            x = narrowed(x, tl.bfloat16).to(tl.float32)
        else:
            top: tl.constexpr = 2 ** (BITS - 1) - 1
            scale = row_scales(x, top)
            x = row_codes(x, scale, top) * scale[:, None]
        tl.store(at, x)
