"""Matrix products inside a Triton kernel, on a GPU and in the interpreter alike."""

from __future__ import annotations

import triton
import triton.language as tl

from evalgate.kernels.gpu.rounding import INTERPRETED


@triton.jit
def product(a, b, PRECISION: tl.constexpr, to=None) -> tl.tensor:
    """``a @ b`` (``+ to``) in float32, of tiles in one dtype; ``PRECISION`` is for float32 ones."""
    if INTERPRETED:
        # The interpreter would multiply bfloat16 as if its bits were integers.
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, to, input_precision=PRECISION)
