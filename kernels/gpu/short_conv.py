"""Short causal convolution over time on a GPU, one filter for each channel, followed by SiLU.

``y_t = silu(sum_j w_j * x_{t - W + 1 + j})``.  The last W - 1 inputs of a sequence are its state, one slot of a pool
``[slots, W - 1, C]``, oldest first; a cut may be shorter than that: the new state then holds inputs of the old one.
Packed sequences of any lengths, or one token a sequence; sums are float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalgate.kernels.gpu.launch import Launch
from evalgate.kernels.gpu.rounding import narrowed

TOKENS, CHANNELS = 16, 1024
"""Of one program's block; 8 bfloat16 channels are the 16 bytes that a thread takes at a time."""
STRIP = 512
"""Channels of a program that has few rows."""


class Packed(NamedTuple):
    """Sequences one after another in one tensor of tokens; made once for a batch, read by every layer."""

    starts: Tensor
    """int64 ``[S + 1]``: first token of each sequence, and where the last one ends."""
    sequences: Tensor
    """int32 ``[N]``: the sequence of each token."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str) -> Packed:
        """For sequences of so many tokens each, 0 allowed."""
        starts = torch.tensor([0, *accumulate(lengths)])
        sequences = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), starts.diff())
        return cls(starts.to(device), sequences.to(device))


class Snapshots(NamedTuple):
    """States to keep of sequences on their way."""

    pool: Tensor
    """``[slots, W - 1, C]``, in the dtype of the live pool; its channels are contiguous."""
    wanted: Tensor
    """int64 ``[X, 3]``: sequence, tokens of it that the state has seen (0 to all of the stretch), slot of ``pool``."""

    @classmethod
    def of(cls, pool: Tensor, wanted: Mapping[tuple[int, int], int]) -> Snapshots:
        """For ``{(sequence, tokens of it): slot}``."""
        rows = [(sequence, tokens, slot) for (sequence, tokens), slot in wanted.items()]
        return cls(pool, torch.tensor(rows, dtype=torch.int64).view(-1, 3).to(pool.device))


def short_conv(
    x: Tensor,
    taps: Tensor,
    pool: Tensor,
    packed: Packed,
    slots: Tensor,
    *,
    parents: Tensor | None = None,
    snapshots: Snapshots | None = None,
) -> Tensor:
    """Stretches of any lengths: ``[N, C]`` -> ``[N, C]`` in the dtype of ``x``; the states move on.

    ``x`` and ``pool`` ``[slots, W - 1, C]`` have contiguous channels, ``taps`` is ``[W, C]``, contiguous, oldest input
    first.  Sequence s goes on from the state at ``parents[s]`` (where not given, ``slots[s]``) and leaves its own at
    ``slots[s]``; both int64 ``[S]``, slots distinct, and what one sequence writes no other reads.  Where one of them is
    -1 no state is touched and the outputs are zeros, as they are for rows after the last sequence.
    """
    count, channels = x.shape
    width = len(taps)
    parents = slots if parents is None else parents
    out = torch.empty(count, channels, dtype=x.dtype, device=x.device)
    if count:
        block = min(CHANNELS, triton.next_power_of_2(channels))
        grid = (triton.cdiv(count, TOKENS), triton.cdiv(channels, block))
        _convolve[grid](
            x, taps, pool, packed.starts, packed.sequences, parents, slots, out,
            count, len(packed.sequences), channels, x.stride(0), pool.stride(0), pool.stride(1),
            W=width, TOKENS=TOKENS, CHANNELS=block, num_warps=4,
        )  # fmt: skip
    # Snapshots first: they may still need the states that the sequences come from.
    for target, wanted in ([snapshots] if snapshots is not None else []) + [Snapshots(pool, slots)]:
        strip = min(STRIP, triton.next_power_of_2(channels))
        if len(wanted):
            _keep[(triton.cdiv(channels, strip), len(wanted))](
                x, pool, target, packed.starts, parents, slots, wanted,
                channels, x.stride(0), pool.stride(0), pool.stride(1), target.stride(0), target.stride(1),
                W=width, ROWS=triton.next_power_of_2(width - 1), CHANNELS=strip, FINAL=wanted is slots, num_warps=4,
            )  # fmt: skip
    return out


def short_conv_update(x: Tensor, taps: Tensor, pool: Tensor, slots: Tensor, *, parents: Tensor | None = None) -> Tensor:
    """One token of each sequence, in one launch: ``[B, C]`` -> ``[B, C]``; all else as :func:`short_conv`."""
    rows, channels = x.shape
    parents = slots if parents is None else parents
    out = torch.empty(rows, channels, dtype=x.dtype, device=x.device)
    strip = min(STRIP, triton.next_power_of_2(channels))
    _update[(triton.cdiv(channels, strip), rows)](
        x, taps, pool, parents, slots, out, channels, x.stride(0), pool.stride(0), pool.stride(1),
        W=len(taps), CHANNELS=strip, num_warps=2,
    )  # fmt: skip
    return out


@triton.jit
def _none():
    return ()


@triton.jit
def _with(those, one):
    return those + (one,)  # noqa: RUF005 - Triton knows no unpacking


@triton.jit
def _convolve(
    x, taps, pool, starts, sequences, parents, slots, out,
    count, real, channels, x_row, pool_slot, pool_row,
    W: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    across = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = across < channels
    first = tl.program_id(0).to(tl.int64) * TOKENS
    # All loads that depend on nothing come first and wait together.
    filters, inputs, owners = _none(), _none(), _none()
    for tap in tl.static_range(W):
        filters = _with(filters, tl.load(taps + tap * channels + across, mask=there, other=0.0).to(tl.float32))
    for step in tl.static_range(TOKENS):
        known = first + step < real
        owners = _with(owners, tl.load(sequences + first + step, mask=known, other=-1))
        inputs = _with(inputs, tl.load(x + (first + step) * x_row + across, mask=there & known, other=0.0))
    previous, live, window = -2, False, _none()
    for _ in tl.static_range(W - 1):
        window = _with(window, tl.zeros((CHANNELS,), tl.float32))
    for step in tl.static_range(TOKENS):
        token, sequence = first + step, owners[step]
        if sequence != previous:
            live = False
            if sequence >= 0:
                start, parent = tl.load(starts + sequence), tl.load(parents + sequence)
                live = (parent >= 0) & (tl.load(slots + sequence) >= 0)
                tail = pool + parent * pool_slot
                window = _window(x, tail, token, start, x_row, pool_row, across, there & live, W)
            previous = sequence
        new = inputs[step].to(tl.float32)
        total = new * filters[W - 1]
        for tap in tl.static_range(W - 1):
            total += window[tap] * filters[tap]
        y = tl.where(live, total / (1.0 + tl.exp(-total)), 0.0)
        tl.store(out + token * channels + across, narrowed(y, out.dtype.element_ty), mask=there & (token < count))
        window = _with(window[1:], new)


@triton.jit
def _window(x, tail, token, start, x_row, pool_row, across, there, W: tl.constexpr):
    """The W - 1 inputs before a token: what a stretch does not have is in the state that it goes on from."""
    window = _none()
    for back in tl.static_range(W - 1):
        source = token - (W - 1 - back)
        row = tl.load(x + source * x_row + across, mask=there & (source >= start), other=0.0).to(tl.float32)
        kept = tail + (source - start + (W - 1)) * pool_row + across
        row += tl.load(kept, mask=there & (source < start), other=0.0).to(tl.float32)
        window = _with(window, row)
    return window


@triton.jit
def _keep(
    x, pool, target, starts, parents, slots, wanted,
    channels, x_row, pool_slot, pool_row, target_slot, target_row,
    W: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, FINAL: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(1).to(tl.int64)
    if FINAL:
        sequence = entry
        end, slot = tl.load(starts + sequence + 1), tl.load(slots + sequence)
    else:
        sequence = tl.load(wanted + 3 * entry)
        end, slot = tl.load(starts + sequence) + tl.load(wanted + 3 * entry + 1), tl.load(wanted + 3 * entry + 2)
    start, parent = tl.load(starts + sequence), tl.load(parents + sequence)
    if (parent >= 0) & (slot >= 0) & (tl.load(slots + sequence) >= 0):
        across = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
        rows = tl.arange(0, ROWS).to(tl.int64)
        there = (rows < W - 1)[:, None] & (across < channels)[None, :]
        source = end - (W - 1) + rows
        inputs = x + source[:, None] * x_row + across[None, :]
        tail = pool + parent * pool_slot + (source - start + (W - 1))[:, None] * pool_row + across[None, :]
        within = (source >= start)[:, None]
        new = tl.load(inputs, mask=there & within, other=0.0).to(pool.dtype.element_ty)
        new = tl.where(within, new, tl.load(tail, mask=there & (source < start)[:, None], other=0.0))
        # A short stretch moves rows within one slot: all of them are read before one is written.
        tl.debug_barrier()
        tl.store(target + slot * target_slot + rows[:, None] * target_row + across[None, :], new, mask=there)


@triton.jit
def _update(
    x, taps, pool, parents, slots, out, channels, x_row, pool_slot, pool_row,
    W: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    across = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    there = across < channels
    parent, slot = tl.load(parents + row), tl.load(slots + row)
    total = tl.zeros((CHANNELS,), tl.float32)
    if (parent >= 0) & (slot >= 0):
        tail = _none()
        for tap in tl.static_range(W - 1):
            tail = _with(tail, tl.load(pool + parent * pool_slot + tap * pool_row + across, mask=there, other=0.0))
        new = tl.load(x + row * x_row + across, mask=there, other=0.0)
        total = new.to(tl.float32) * tl.load(taps + (W - 1) * channels + across, mask=there, other=0.0)
        for tap in tl.static_range(W - 1):
            total += tail[tap].to(tl.float32) * tl.load(taps + tap * channels + across, mask=there, other=0.0)
        # Rows move within one slot: all of them are read before one is written.
        tl.debug_barrier()
        at = pool + slot * pool_slot + across
        for tap in tl.static_range(W - 2):
            tl.store(at + tap * pool_row, tail[tap + 1], mask=there)
        tl.store(at + (W - 2) * pool_row, new.to(pool.dtype.element_ty), mask=there)
    tl.store(out + row * channels + across, narrowed(total / (1.0 + tl.exp(-total)), out.dtype.element_ty), mask=there)


def published() -> tuple[Launch, ...]:
    """4 taps over the queries, keys and values of 32 heads of 128, bfloat16."""
    channels = 3 * 32 * 128
    inputs = {"x": "*bf16", "taps": "*bf16", "pool": "*bf16", "parents": "*i64", "slots": "*i64"}
    sizes = {"channels": "i32", "x_row": "i32", "pool_slot": "i32", "pool_row": "i32"}
    aligned = tuple(sizes)
    packed = {"starts": "*i64"}
    return (
        Launch(
            "short_conv", _convolve,
            inputs | packed | {"sequences": "*i32", "out": "*bf16", "count": "i32", "real": "i32"} | sizes,
            {"W": 4, "TOKENS": TOKENS, "CHANNELS": CHANNELS}, 4, 3,
            f"blocks of {TOKENS} tokens, {channels // CHANNELS} blocks of {CHANNELS} channels", aligned,
        ),
        *(
            Launch(
                f"short_conv {name}", _keep,
                {k: v for k, v in inputs.items() if k != "taps"} | packed | sizes
                | {"target": "*bf16", "wanted": "*i64", "target_slot": "i32", "target_row": "i32"},
                {"W": 4, "ROWS": 4, "CHANNELS": STRIP, "FINAL": final}, 4, 3,
                f"{channels // STRIP} blocks of {STRIP} channels, states", (*aligned, "target_slot", "target_row"),
            )
            for name, final in (("final states", True), ("snapshots", False))
        ),
        Launch(
            "short_conv update", _update, inputs | sizes | {"out": "*bf16"}, {"W": 4, "CHANNELS": STRIP}, 2, 3,
            f"{channels // STRIP} blocks of {STRIP} channels, rows", aligned,
        ),
    )  # fmt: skip
