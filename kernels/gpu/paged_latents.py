"""Cached latents inside a Triton kernel: where the row of a position lies, and how its codes become numbers.

Both attention kernels read the cache through this, so a page that is not there and a code that is no number mean the
same to both.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

NATIVE_FP8 = 89
"""Compute capability x 10 from which on the compiler converts float8_e4m3fn; before, the kernel does it by hand."""


@triton.jit
def rows_of(
    pages: tl.tensor, start: tl.tensor, end: tl.tensor, inside: tl.tensor, PAGE: tl.constexpr, KEYS: tl.constexpr
) -> tl.tensor:
    """int64 rows of the pool at KEYS positions from ``start`` on, by the page numbers at ``pages``; -1: not to be read.

    ``start`` is a multiple of KEYS, and one of KEYS and PAGE divides the other.  What is not ``inside``, at or after
    ``end``, or in page -1 is not to be read.
    """
    key = tl.arange(0, KEYS)
    if PAGE % KEYS == 0:
        page = tl.load(pages + start // PAGE).to(tl.int64)
        row = page * PAGE + start % PAGE + key
        return tl.where(inside & (page >= 0), row, -1)
    row = tl.full([KEYS], -1, tl.int64)
    for part in tl.static_range(KEYS // PAGE):
        # Loaded as scalars: as a tensor of rows, page numbers would take part in the copies' own pipeline.
        page = tl.load(pages + start // PAGE + part, mask=start + part * PAGE < end, other=-1).to(tl.int64)
        row = tl.where(inside & (page >= 0) & (key // PAGE == part), page * PAGE + key % PAGE, row)
    return row


@triton.jit
def numbers(codes: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Codes as numbers of ``dtype``: floats, int8, float8_e4m3fn, or the bits of float8_e4m3fn as uint8."""
    if codes.dtype == tl.uint8:
        # The four exponent bits sit on top of the five of float16, whose bias is larger by 8. No subnormal is lost.
        bits = codes.to(tl.uint16)
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
        known = half.to(tl.float32) * 256.0
        found = tl.where((bits & 0x7F) == 0x7F, float("nan"), known).to(dtype)
    else:
        found = codes.to(dtype)
    if codes.dtype.primitive_bitwidth == 8 and dtype == tl.bfloat16:
        # A move that may not be repeated: the compiler would otherwise convert once for each product that takes the
        # numbers, in that product's layout, and load without its pipeline.
        found = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [found], tl.bfloat16, is_pure=False, pack=2)
    return found


class Stored(NamedTuple):
    """Latents as a kernel takes them."""

    codes: Tensor
    """``[rows, L + R]``; float8_e4m3fn as uint8 where the chip's compiler does not know it."""
    scales: Tensor
    """float32 ``[rows, 2]``; the codes themselves, never read, where there are no scales."""
    scaled: bool


def stored(latents: Tensor, scales: Tensor | None) -> Stored:
    """Latents and their scales, checked for what a kernel cannot see."""
    assert latents.stride(-1) == 1, f"latents: the entries of a row must lie side by side, not {latents.stride()}"
    coded = latents.dtype in {torch.int8, torch.float8_e4m3fn}
    assert coded == (scales is not None), f"latents: {latents.dtype} and {'no ' if scales is None else ''}scales"
    if latents.dtype == torch.float8_e4m3fn and capability(latents) < NATIVE_FP8:
        latents = latents.view(torch.uint8)
    if scales is None:
        return Stored(latents, latents, scaled=False)
    assert scales.dtype == torch.float32, f"latents: scales in {scales.dtype}"
    assert scales.stride(-1) == 1, f"latents: the scales of a row must lie side by side, not {scales.stride()}"
    return Stored(latents, scales, scaled=True)


def capability(tensor: Tensor) -> int:
    """Compute capability x 10 of the chip that a tensor is on; 0: no GPU."""
    if tensor.device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(tensor.device)
    return 10 * major + minor


def operand(dtype: torch.dtype, kernel: object) -> tl.dtype:
    """What a kernel's matrix products take for tensors of ``dtype``.

    Triton's interpreter multiplies bfloat16 as if its bits were integers, so there the rounded numbers go in as
    float32; the products are the same.
    """
    if dtype == torch.bfloat16 and not isinstance(kernel, InterpretedFunction):
        return tl.bfloat16
    return tl.float32
