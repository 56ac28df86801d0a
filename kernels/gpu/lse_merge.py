"""Joining parts of attention on the GPU: one operation for the splits of a decode step and the tiles of a prefill.

As in :mod:`evalgate.kernels.lse_merge`, a part is a mean and the natural log of its sum of exponentials in float32,
and one whose log is -inf saw no key: whatever its mean holds is never read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from evalgate.kernels.gpu.launch import Launch
from evalgate.kernels.gpu.rounding import narrowed
from evalgate.kernels.lse_merge import Part

UNIT = 8
"""Parts that are read together; also a sum of weights is made of so many at a time, so that parts which saw nothing,
appended at the end, change no bit of a result."""
COLUMNS = 128
"""Values of a mean that one program joins."""
WARPS, STAGES = 4, 3


@triton.jit
def finite(top: tl.tensor) -> tl.tensor:
    """A largest score to subtract: ``exp(-inf - -inf)`` would be NaN, and any finite number gives weights of 0."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def finished(total: tl.tensor) -> tl.tensor:
    """What a weighted sum is divided by: its sum of weights, or 1 where nothing was seen and the sum is 0."""
    return tl.where(total == 0.0, 1.0, total)


@triton.jit
def log_sum(top: tl.tensor, total: tl.tensor) -> tl.tensor:
    """``top + log(total)``, and -inf where nothing was seen."""
    return tl.where(total == 0.0, float("-inf"), top + tl.log(finished(total)))


@triton.jit
def join(
    at_mean: tl.tensor,
    at_lse: tl.tensor,
    mean: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    real: tl.tensor,
    written: tl.tensor,
) -> None:
    """Join the weighted sum ``mean`` of a part into the means and logs that stand at ``at_mean`` and ``at_lse``.

    Its log of the sum of exponentials is ``top + log(total)``.  What stands beside a log of -inf is not read.
    """
    found = log_sum(top, total)
    earlier = tl.load(at_lse, mask=real, other=float("-inf"))
    reference = finite(tl.maximum(found, earlier))
    kept, added = tl.exp(earlier - reference), tl.exp(found - reference)
    summed = kept + added
    past = tl.load(at_mean, mask=written & (kept > 0.0)[:, None], other=0.0)
    # Each divided before they are added: the weights of a mean are at most 1.
    kept, added = kept / finished(summed), added / (finished(summed) * finished(total))
    tl.store(at_mean, mean * added[:, None] + past * kept[:, None], mask=written)
    tl.store(at_lse, log_sum(reference, summed), mask=real)


@triton.jit
def _merge(
    output,
    lse,
    merged,
    merged_lse,
    parts,
    V: tl.constexpr,
    COLUMNS: tl.constexpr,
    UNIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    unit = tl.arange(0, UNIT)
    tops = tl.full([UNIT], float("-inf"), tl.float32)
    for start in range(0, parts, UNIT):
        at = start + unit
        tops = tl.maximum(tops, tl.load(lse + row * parts + at, mask=at < parts, other=float("-inf")))
    top = finite(tl.max(tops, axis=0))
    totals = tl.zeros([UNIT], tl.float32)
    sums = tl.zeros([UNIT, COLUMNS], tl.float32)
    for start in tl.range(0, parts, UNIT, num_stages=STAGES):
        at = start + unit
        weights = tl.exp(tl.load(lse + row * parts + at, mask=at < parts, other=float("-inf")) - top)
        place = (row * parts + at)[:, None] * V + columns[None, :]
        mean = tl.load(output + place, mask=(weights > 0.0)[:, None] & (columns < V)[None, :], other=0.0)
        totals += weights
        sums += weights[:, None] * mean.to(tl.float32)
    total = tl.sum(totals, axis=0)
    mean = tl.sum(sums, axis=0) / finished(total)
    mean = narrowed(mean, merged.dtype.element_ty)
    tl.store(merged + row * V + columns, mean, mask=columns < V)
    if tl.program_id(1) == 0:
        tl.store(merged_lse + row, log_sum(top, total))


def lse_merge(parts: Part, dtype: torch.dtype) -> Part:
    """Join P parts: an ``output`` ``[..., P, V]`` and a float32 ``lse`` ``[..., P]`` lose P; the mean is in ``dtype``.

    ``o = sum_p exp(lse_p) o_p / sum_p exp(lse_p)`` for logs of any size; where no part saw a key, 0 and -inf.
    """
    output, lse = parts.output.contiguous(), parts.lse.contiguous()
    *rows, count, width = output.shape
    assert lse.shape == output.shape[:-1], f"lse_merge: {output.shape}, {lse.shape}"
    assert lse.dtype == torch.float32, f"lse_merge: logs in {lse.dtype}"
    merged, merged_lse = output.new_empty(*rows, width, dtype=dtype), lse.new_empty(rows)
    if merged_lse.numel():
        grid = (merged_lse.numel(), triton.cdiv(width, COLUMNS))
        _merge[grid](
            output,
            lse,
            merged,
            merged_lse,
            count,
            V=width,
            COLUMNS=COLUMNS,
            UNIT=UNIT,
            STAGES=STAGES,
            num_warps=WARPS,
            num_stages=STAGES,
        )
    return Part(merged, merged_lse)


def published() -> tuple[Launch, ...]:
    """Joining the splits of latent attention."""
    tensors = {"output": "*fp32", "lse": "*fp32", "merged": "*bf16", "merged_lse": "*fp32", "parts": "i32"}
    constants: dict[str, object] = {"V": 512, "COLUMNS": COLUMNS, "UNIT": UNIT, "STAGES": STAGES}
    return (Launch("lse_merge", _merge, tensors, constants, WARPS, STAGES, "batch x heads x 4 quarters of the width"),)
