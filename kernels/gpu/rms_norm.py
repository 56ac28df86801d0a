"""Root-mean-square norm on a GPU, plain, gated, or of a sum with the residual stream: one kernel, one pass.

``rms_norm(x) = w * x / sqrt(mean(x^2) + eps)``; the gated form multiplies that by ``sigmoid(gate)``.  Each row is read
once and written once; the arithmetic is float32, rounded where the CPU form rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalgate.kernels.gpu.kda_gate import sigmoid
from evalgate.kernels.gpu.launch import Launch
from evalgate.kernels.gpu.rounding import narrowed

TILE = 2048
"""Numbers of a program's rows where they are short: 16 of them, and their gates, a thread."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm over the last dimension, ``[..., D]`` in the dtype of ``x``; ``weight`` is ``[D]``.

    ``x`` is ``[R, D]`` or ``[A, B, D]`` with any strides but the last, which is 1; so are the other arguments.
    """
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch(x, None, weight, out, eps)
    return out


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``rms_norm(x) * sigmoid(gate)``, ``[..., D]`` in the dtype of ``gate``; shapes as in :func:`rms_norm`."""
    out = torch.empty_like(gate, memory_format=torch.contiguous_format)
    _launch(x, gate, weight, out, eps, gated=True)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add ``x`` to ``residual`` in place, and return the norm of that sum; shapes as in :func:`rms_norm`."""
    out = torch.empty_like(residual, memory_format=torch.contiguous_format)
    _launch(x, residual, weight, out, eps)
    return out


class Shape(NamedTuple):
    """How rows are laid over programs."""

    width: int
    """The next power of two."""
    rows: int
    warps: int

    @classmethod
    def of(cls, width: int) -> Shape:
        """For rows of ``width`` numbers, 16 to 8,192."""
        padded = triton.next_power_of_2(width)
        rows = max(TILE // padded, 1)
        return cls(padded, rows, min(max(padded * rows // 512, 4), 8))


def published() -> tuple[Launch, ...]:
    """The hidden width 2304, the latents 512 of 576, and the 32 heads of 128 that are gated; bfloat16."""
    signature = {"x": "*bf16", "weight": "*bf16", "out": "*bf16", "count": "i32", "inner": "i32", "eps": "fp32"}
    strides = tuple(f"{name}_{d}" for name in ("x", "other") for d in ("outer", "inner"))
    launches = []
    for name, width, gated in (
        ("", 2304, None),
        ("latent", 512, None),
        ("gated", 128, True),
        ("of a sum", 2304, False),
    ):
        shape = Shape.of(width)
        types = signature | dict.fromkeys(strides, "i32")
        constants: dict[str, object] = {"D": width, "WIDTH": shape.width, "ROWS": shape.rows, "GATED": bool(gated)}
        if gated is None:
            constants["other"] = None
        else:
            types["other"] = "*bf16"
        if gated:
            types |= {"weight": "*fp32", "x": "*bf16"}
        launches.append(
            Launch(f"rms_norm {name}".strip(), _rms_norm, types, constants, shape.warps, 3,
                   f"blocks of {shape.rows} rows", strides)
        )  # fmt: skip
    return tuple(launches)


def _launch(x: Tensor, other: Tensor | None, weight: Tensor, out: Tensor, eps: float, *, gated: bool = False) -> None:
    assert x.stride(-1) == weight.stride(-1) == 1, "the last dimension is contiguous"
    assert other is None or (other.shape == x.shape and other.stride(-1) == 1), f"{x.shape} needs its like beside it"
    width = x.shape[-1]
    rows = x if x.dim() == 3 else x.unsqueeze(0)
    beside = rows if other is None else other if other.dim() == 3 else other.unsqueeze(0)
    count = rows.shape[0] * rows.shape[1]
    shape = Shape.of(width)
    if count:
        _rms_norm[(triton.cdiv(count, shape.rows),)](
            x, other, weight, out, count, rows.shape[1], *rows.stride()[:2], *beside.stride()[:2], eps,
            D=width, WIDTH=shape.width, ROWS=shape.rows, GATED=gated, num_warps=shape.warps,
        )  # fmt: skip


@triton.jit
def _rms_norm(
    x, other, weight, out, count, inner, x_outer, x_inner, other_outer, other_inner, eps,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    across = tl.arange(0, WIDTH)[None, :]
    there = (row < count)[:, None] & (across < D)
    a, b = (row // inner)[:, None], (row % inner)[:, None]
    value = tl.load(x + a * x_outer + b * x_inner + across, mask=there, other=0.0).to(tl.float32)
    if other is not None:
        beside = other + a * other_outer + b * other_inner + across
        second = tl.load(beside, mask=there, other=0.0)
        if not GATED:
            # The residual stream keeps the sum in its own precision, and that is what is normed.
            total = narrowed(value + second.to(tl.float32), second.dtype)
            tl.store(beside, total, mask=there)
            value = total.to(tl.float32)
    # What a row is multiplied by, to the last bits: an approximate root would tilt the whole row.
    normed = value * tl.div_rn(1.0, tl.sqrt_rn(tl.sum(value * value, axis=1) / D + eps))[:, None]
    scale = tl.load(weight + across, mask=across < D, other=0.0).to(tl.float32)
    if GATED:
        normed = normed * scale * sigmoid(second.to(tl.float32))
    else:
        # As the CPU form does it: rounded before the weight, and again after it.
        normed = narrowed(normed, out.dtype.element_ty).to(tl.float32) * scale
    tl.store(out + row[:, None] * D + across, narrowed(normed, out.dtype.element_ty), mask=there)
