"""Rounding inside a Triton kernel: half to even, on a GPU and in the interpreter alike."""

from __future__ import annotations

import triton
import triton.language as tl

HALF_EVEN: tl.constexpr = tl.constexpr(1.5 * 2**23)
"""Added to a float32 below 2^22, it leaves no fraction, rounded half to even; taken away again, the integer is left."""
INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def to_integer(x: tl.tensor) -> tl.tensor:
    """float32 of a size below 2^22, rounded to the nearest integer; still float32."""
    return (x + HALF_EVEN) - HALF_EVEN


@triton.jit
def narrowed(x: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """float32 in ``dtype`` (bfloat16 or float32), rounded to the nearest; NaN stays NaN."""
    if INTERPRETED and dtype == tl.bfloat16:
        # A GPU rounds by itself; Triton's interpreter cuts the last 16 bits off, so they are rounded away here.
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        x = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # noqa: PLR0124 - not true of NaN
    return x.to(dtype)
