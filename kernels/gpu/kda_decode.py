"""One token of Kimi Delta Attention for a batch of state slots on a GPU, from raw projections, in one launch.

Per head, with ``q = scale * l2norm(q)``, ``k = l2norm(k)``, ``alpha = exp(-exp(a_log) * softplus(f + dt_bias))`` and
``b = sigmoid(beta)``::

    S <- Diag(alpha) S        u = b (v - S^T k)        S <- S + k u^T        o = S^T q

A program holds a block of a head's state in registers: each state is read once and written once, whatever form it is
stored in, and the sums are float32.  The output is that of the state before it is rounded for storage.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalgate.kernels.gpu.kda_gate import l2norm, log_decay, sigmoid
from evalgate.kernels.gpu.launch import Launch
from evalgate.kernels.gpu.rounding import HALF_EVEN, narrowed
from evalgate.kernels.gpu.state_codec import StoredStates, row_scales

SMALLEST: tl.constexpr = tl.constexpr(2.0**-100)
"""Smaller scales are stored as 0, and so are their rows: below this, the remainders of quotients would underflow."""


def kda_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    beta: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    pool: StoredStates,
    parents: Tensor,
    slots: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Advance states by one token each and return the output ``[B, H, V]`` in the dtype of ``v``.

    ``q``, ``k``, ``f`` are ``[B, H, K]`` and ``v`` is ``[B, H, V]``, the last dimension contiguous; ``beta`` is
    ``[B, H]``; float32 or bfloat16.  ``a_log`` ``[H]`` and ``dt_bias`` ``[H, K]`` are contiguous.  ``pool`` holds
    states ``[slots, H, K, V]`` as float32, bfloat16 or int8.  Row b reads the state at ``parents[b]`` and writes the
    one at ``slots[b]`` (int64 ``[B]``): the same slot, or for a fork a slot of its own.  Slots are distinct, and what
    one row writes no other row reads.  A row that is -1 in either list touches no state and gives zeros.
    """
    batch, heads, keys = q.shape
    values = v.shape[-1]
    codes, scales = pool
    assert codes.shape[1:] == (heads, keys, values), f"states {codes.shape}"
    assert {x.stride(-1) for x in (q, k, v, f, codes)} == {1}, "the last dimension is contiguous"
    int8 = scales is not None
    block, warps = _block(values, int8=int8)
    out = torch.empty(batch, heads, values, dtype=v.dtype, device=v.device)
    _kda_decode[(values // block, heads, batch)](
        q, k, v, f, beta, a_log, dt_bias, codes, scales, parents, slots, out, scale,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *f.stride()[:2], *beta.stride(),
        *codes.stride()[:3], *((0, 0) if scales is None else scales.stride()[:2]),
        K=keys, V=values, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return out


def published() -> tuple[Launch, ...]:
    """32 heads of 128 x 128, bfloat16 activations, the three forms of the state."""
    width = 128
    rows = {f"{x}_{d}": "i64" for x in ("q", "k", "v", "f", "beta") for d in ("row", "head")}
    states = {f"state_{d}": "i64" for d in ("slot", "head", "key")} | {f"scale_{d}": "i64" for d in ("slot", "head")}
    activations = dict.fromkeys(("q", "k", "v", "f", "beta", "out"), "*bf16")
    others = {"a_log": "*fp32", "dt_bias": "*fp32", "parents": "*i64", "slots": "*i64", "scale": "fp32"}
    launches = []
    for name, code in (("fp32", "*fp32"), ("bf16", "*bf16"), ("int8", "*i8")):
        block, warps = _block(width, int8=name == "int8")
        signature = activations | others | {"states": code} | rows | states
        constants: dict[str, object] = {"K": width, "V": width, "BLOCK": block}
        if name == "int8":
            signature["scales"] = "*fp32"
        else:
            constants["scales"] = None
        del signature["beta_head"]
        constants["beta_head"] = 1
        grid = f"{width // block} blocks of {block} values, heads, rows"
        aligned = tuple(x for x in rows | states if x != "beta_head")
        launches.append(Launch(f"kda_decode {name}", _kda_decode, signature, constants, warps, 3, grid, aligned))
    return tuple(launches)


def _block(values: int, *, int8: bool) -> tuple[int, int]:
    """Values of a program's block, and its warps: 32 numbers of state a thread, 64 where a scale needs whole rows."""
    return (values, 8 if values > 64 else 4) if int8 else (min(values, 32), 4)


@triton.jit
def _codes(x, scales):
    """int8 codes of a tile, its quotients rounded half to even; 0 where a scale is 0 or no number."""
    # A division costs more than all the rest of the step.  A product with the reciprocal, corrected by its remainder,
    # is the quotient to the last bit (Markstein 1990); in the last bits of the sum are the rounded quotient's own.
    inverse = tl.div_rn(1.0, tl.where(scales == 0.0, 1.0, scales))[:, None]
    steps = x * inverse
    steps = tl.fma(tl.fma(-steps, scales[:, None], x), inverse, steps)
    return (steps + HALF_EVEN).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def _kda_decode(
    q, k, v, f, beta, a_log, dt_bias, states, scales, parents, slots, out, scale,
    q_row, q_head, k_row, k_head, v_row, v_head, f_row, f_head, beta_row, beta_head,
    state_slot, state_head, state_key, scale_slot, scale_head,
    K: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    keys, values = tl.arange(0, K), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    out += (row * tl.num_programs(1) + head) * V + values
    parent, slot = tl.load(parents + row), tl.load(slots + row)
    if (parent < 0) | (slot < 0):
        tl.store(out, tl.zeros((BLOCK,), out.dtype.element_ty))
    else:
        at = head * state_head + keys[:, None].to(tl.int64) * state_key + values[None, :]
        state = tl.load(states + parent * state_slot + at).to(tl.float32)
        q_unit = l2norm(tl.load(q + row * q_row + head * q_head + keys).to(tl.float32), scale)
        k_unit = l2norm(tl.load(k + row * k_row + head * k_head + keys).to(tl.float32), 1.0)
        gate = tl.load(f + row * f_row + head * f_head + keys).to(tl.float32)
        fade = tl.exp(log_decay(gate, tl.load(a_log + head), tl.load(dt_bias + head * K + keys)))
        strength = sigmoid(tl.load(beta + row * beta_row + head * beta_head).to(tl.float32))
        if scales is not None:
            fade *= tl.load(scales + parent * scale_slot + head * scale_head + keys)
        given = tl.load(v + row * v_row + head * v_head + values).to(tl.float32)

        state *= fade[:, None]
        written = strength * (given - tl.sum(state * k_unit[:, None], axis=0))
        state += k_unit[:, None] * written[None, :]
        tl.store(out, narrowed(tl.sum(state * q_unit[:, None], axis=0), out.dtype.element_ty))

        # Codes and scales may be overwritten where they were read: all threads are to have read them.
        tl.debug_barrier()
        if scales is None:
            state = narrowed(state, states.dtype.element_ty)
        else:
            steps = row_scales(state, 127)
            steps = tl.where(steps < SMALLEST, 0.0, steps)
            tl.store(scales + slot * scale_slot + head * scale_head + keys, steps)
            state = _codes(state, steps)
        tl.store(states + slot * state_slot + at, state)
