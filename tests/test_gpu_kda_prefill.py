"""Kimi Delta Attention prefill on a GPU, under Triton's interpreter: the recurrence in float64, slots, snapshots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from evalgate.kernels.gpu.kda_chunks import Chunks
from evalgate.kernels.gpu.kda_prefill import Snapshots, kda_prefill
from evalgate.kernels.kda_gate import l2norm, reference_kda_gate
from evalgate.kernels.kda_prefill import reference_kda

ROUNDING = 3e-6
"""float32 against float64 over hundreds of tokens, values of size 1: a few dozen roundings of 2^-24."""
HALF_ROUNDING = 1e-2
"""bfloat16 products, eight bits each, of values of size 1: a few roundings of 2^-9 on every path."""
POISON = float("nan")
SLOT = {"first": 3, "step": 2}
"""Sequence s lies in slot 3 + 2 s: 0, the scratch slot, and those between belong to nobody."""


class Case(NamedTuple):
    """Raw inputs of packed sequences, and a pool whose unowned slots are poisoned."""

    q: Tensor
    k: Tensor
    v: Tensor
    f: Tensor
    beta: Tensor
    a_log: Tensor
    dt_bias: Tensor
    pool: Tensor
    slots: Tensor
    lengths: tuple[int, ...]

    def run(self, *, snapshots: Snapshots | None = None, span: int | None = None) -> Tensor:
        """The output; the pool is advanced."""
        chunks = Chunks.of(self.lengths, "cpu") if span is None else Chunks.of(self.lengths, "cpu", span)
        return kda_prefill(*self[:9], chunks, scale=self.k.shape[2] ** -0.5, snapshots=snapshots)

    def fresh(self) -> Case:
        """The same with a pool of its own."""
        return self._replace(pool=self.pool.clone())

    def cut(self, start: int, stop: int) -> Case:
        """Tokens ``[start, stop)`` of a single sequence, in the same pool."""
        q, k, v, f, beta = (x[start:stop] for x in self[:5])
        return self._replace(q=q, k=k, v=v, f=f, beta=beta, lengths=(stop - start,))

    def expected(self) -> tuple[Tensor, list[Tensor]]:
        """Output and final states by the recurrence, in float64."""
        q, k, v, f, beta, a_log, dt_bias, pool = (x.double() for x in self[:8])
        g = reference_kda_gate(f, a_log, dt_bias)
        q, k, beta = l2norm(q, k.shape[2] ** -0.5), l2norm(k), beta.sigmoid()
        outputs, states, at = [], [], 0
        for slot, length in zip(self.slots.tolist(), self.lengths, strict=True):
            tokens = slice(at, at + length)
            part = [x[None, tokens] for x in (q, k, v, g, beta)]
            result = reference_kda(part[0], part[1], part[2], part[3], part[4], pool[slot][None])
            outputs.append(result.output[0])
            states.append(result.final_state[0])
            at += length
        return torch.cat(outputs), states


def make(
    lengths: Sequence[int],
    width: int = 16,
    values: int | None = None,
    heads: int = 1,
    dtype: torch.dtype = torch.float32,
    decay: tuple[float, float] = (1e-4, 2.0),
) -> Case:
    """Random inputs whose decay per step spreads evenly over the decades of ``decay``."""
    torch.manual_seed(width)
    values = width if values is None else values
    tokens = sum(lengths)
    low, high = (math.log(x) for x in decay)
    step = torch.empty(tokens, heads, width, dtype=torch.float64).uniform_(low, high).exp()
    slots = SLOT["first"] + SLOT["step"] * torch.arange(len(lengths))
    pool = torch.full((SLOT["first"] + SLOT["step"] * len(lengths), heads, width, values), POISON)
    pool[slots] = torch.randn(len(lengths), heads, width, values)
    a_log, dt_bias = torch.rand(heads) - 0.5, torch.randn(heads, width)
    # The inverse of softplus, so that -exp(a_log) softplus(f + dt_bias) = -step.
    asked = step / a_log.double().exp()[:, None]
    f = asked + torch.log(-torch.expm1(-asked)) - dt_bias
    return Case(
        torch.randn(tokens, heads, width).to(dtype),
        torch.randn(tokens, heads, width).to(dtype),
        torch.randn(tokens, heads, values).to(dtype),
        f.to(dtype),
        torch.randn(tokens, heads).to(dtype),
        a_log,
        dt_bias,
        pool,
        slots,
        tuple(lengths),
    )


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised memory holds NaN: rows that nobody writes, and results that are read too early, would show."""
    new_empty = torch.Tensor.new_empty

    def poisoned(like: Tensor, *size: Any, **how: Any) -> Tensor:
        made = new_empty(like, *size, **how)
        return made.fill_(POISON) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


def check(x: Case, tolerance: float) -> None:
    """Output and final states are those of the recurrence; all other slots keep their bits."""
    output, states = x.expected()
    run = x.fresh()
    found = run.run()
    assert found.dtype == x.v.dtype
    # Outputs are products with queries a quarter as long, or less.
    torch.testing.assert_close(found.double(), output, atol=tolerance / 2, rtol=0)
    for slot, state, length in zip(x.slots.tolist(), states, x.lengths, strict=True):
        if length:
            torch.testing.assert_close(run.pool[slot].double(), state, atol=tolerance, rtol=0)
        else:
            assert torch.equal(run.pool[slot], x.pool[slot])
    owned = set(x.slots.tolist())
    assert all(run.pool[slot].isnan().all() for slot in range(len(run.pool)) if slot not in owned)


@pytest.mark.parametrize(
    ("lengths", "width", "values", "heads", "dtype"),
    [
        ((1, 15, 16, 17, 0, 63, 64, 65, 130), 16, 16, 1, torch.float32),
        ((0, 130, 17), 32, 64, 1, torch.float32),
        ((17, 64), 32, 32, 1, torch.bfloat16),
        ((65,), 64, 64, 1, torch.float32),
        ((31,), 128, 64, 1, torch.float32),
        ((70,), 128, 128, 1, torch.bfloat16),
        ((257,), 16, 16, 1, torch.float32),
    ],
    ids=str,
)
def test_prefill_is_the_recurrence(
    lengths: tuple[int, ...], width: int, values: int, heads: int, dtype: torch.dtype
) -> None:
    """At lengths around sub-block and chunk borders, sequences of unequal length together, some empty."""
    check(make(lengths, width, values, heads, dtype), ROUNDING if dtype == torch.float32 else HALF_ROUNDING)


def test_any_gate_is_right() -> None:
    """The weakest and the strongest gate at every step, gates that span all between, and resets amid weak gates."""
    steps = (1e-4, 40.0)
    x = make((67,), heads=len(steps) + 2, decay=(1e-4, 40.0))
    x = x._replace(a_log=torch.zeros_like(x.a_log), dt_bias=torch.zeros_like(x.dt_bias))
    weak = math.log(math.expm1(1e-3))
    for head, step in enumerate(steps):
        x.f[:, head] = math.log(math.expm1(step))
    x.f[:, -1] = weak
    x.f[20, -1] = x.f[33, -1] = x.f[66, -1] = 200.0
    check(x, ROUNDING)


def test_a_strong_gate_costs_later_weak_ones_no_digits() -> None:
    """After a gate of -3000, sums of later gates keep their own precision: none is a difference of large sums."""
    x = make((64,), decay=(1e-3, 1e-2))
    x = x._replace(a_log=torch.zeros(1), dt_bias=torch.zeros(1, 16))
    x.f[1] = x.f[17] = 3000.0
    check(x, ROUNDING)


def test_large_inputs_are_as_good_as_small_ones() -> None:
    """Queries and keys of any size become unit vectors; outputs grow with the values and no error grows faster."""
    x = make((80,))
    big = x._replace(q=x.q * 1e4, k=x.k * 1e4, v=x.v * 1e4, pool=x.pool * 1e4, beta=x.beta * 100)
    output, states = big.expected()
    found = big.run()
    torch.testing.assert_close(found.double(), output, atol=1e4 * ROUNDING, rtol=0)
    torch.testing.assert_close(big.pool[3].double(), states[0], atol=1e4 * ROUNDING, rtol=0)


def test_inputs_and_pools_may_lie_anywhere() -> None:
    """Parts of fused projections and a layer's view of the pool give the bits that dense copies give."""
    dense = make((20,), heads=2)
    qkv = torch.full((21, 3, 2, 16), POISON)
    qkv[1:] = torch.stack(dense[:3], dim=1)
    q, k, v = qkv[1:].unbind(1)
    f, beta = torch.full((20, 3, 16), POISON), torch.full((20, 5), POISON)
    f[:, 1:], beta[:, 3:] = dense.f, dense.beta
    layers = torch.full((len(dense.pool), 3, 2, 16, 16), POISON)
    layers[:, 1] = dense.pool
    spread = dense._replace(q=q, k=k, v=v, f=f[:, 1:], beta=beta[:, 3:], pool=layers[:, 1])
    dense = dense.fresh()
    assert torch.equal(spread.run(), dense.run())
    assert torch.equal(spread.pool[dense.slots], dense.pool[dense.slots])
    assert layers[:, [0, 2]].isnan().all()


def test_cuts_and_restores_on_the_grid_change_no_bit() -> None:
    """Piece by piece gives outputs and states of the whole, bit by bit; a snapshot is the state that a piece leaves."""
    x = make((131,), dtype=torch.bfloat16)
    whole, pieces = x.fresh(), x.fresh()
    chunks = Chunks.of((131,), "cpu")
    target = torch.full((3, 1, 16, 16), POISON)
    output = whole.run(snapshots=Snapshots(target, chunks.snapshot_slots({(0, 64): 1, (0, 128): 2})))
    assert target[0].isnan().all(), "slot 0 was not asked for"

    for start, stop, after in ((0, 64, target[1]), (64, 128, target[2]), (128, 131, whole.pool[3])):
        assert torch.equal(pieces.cut(start, stop).run(), output[start:stop])
        assert torch.equal(pieces.pool[3], after)


def test_neighbours_and_spans_change_no_bit() -> None:
    """A sequence is the same alone, beside others, and where memory allows only some chunks at a time."""
    x = make((65, 0, 64))
    together, apart = x.fresh(), x.fresh()
    target, other = torch.full((2, 4, 1, 16, 16), POISON)
    slots = Chunks.of(x.lengths, "cpu").snapshot_slots({(0, 64): 1, (2, 64): 3})
    output = together.run(snapshots=Snapshots(target, slots))
    assert torch.equal(apart.run(snapshots=Snapshots(other, slots), span=2), output)
    assert torch.equal(apart.pool[x.slots], together.pool[x.slots])
    assert torch.equal(other[[1, 3]], target[[1, 3]])
    assert other[[0, 2]].isnan().all()

    alone = x.fresh().cut(65, 129)._replace(slots=x.slots[2:])
    assert torch.equal(alone.run(), output[65:])


def test_no_token_changes_what_came_before() -> None:
    """Other tokens from some point on, gates of all sizes among them, change no earlier output by a bit."""
    x = make((67,), decay=(1e-4, 40.0))
    before = x.fresh().run()
    for at in (21, 64):
        q, k, v, f, beta = (torch.cat([t[:at], t[at:].flip(0) * 3]) for t in x[:5])
        after = x.fresh()._replace(q=q, k=k, v=v, f=f, beta=beta).run()
        assert torch.equal(after[:at], before[:at]), f"changed before token {at}"
        assert not torch.equal(after[at:], before[at:])


def test_a_masked_sequence_touches_no_slot() -> None:
    """Slot -1: zeros come out, even of NaN, no slot is read or written, no snapshot is kept; the others are alone."""
    x = make((64, 20))
    alone = x.fresh().cut(64, 84)._replace(slots=x.slots[1:])
    expected = alone.run()
    x.q[:64] = POISON
    slots = torch.tensor([-1, int(x.slots[1])])
    masked = x.fresh()._replace(slots=slots)
    target = torch.full((2, 1, 16, 16), POISON)
    snapshots = Snapshots(target, Chunks.of(x.lengths, "cpu").snapshot_slots({(0, 64): 1}))
    output = masked.run(snapshots=snapshots)
    assert (output[:64] == 0).all()
    assert torch.equal(output[64:], expected)
    assert target.isnan().all()
    # As integers, for NaN is no equal of NaN.
    assert torch.equal(masked.pool[:5].view(torch.int32), x.pool[:5].view(torch.int32))
    assert torch.equal(masked.pool[-2], alone.pool[-2])


def test_offsets_beyond_int32_do_not_wrap(tmp_path: Path) -> None:
    """Tokens, slots and snapshots further than 2^31 elements from the first of them."""
    x = make((3,))
    dense = x.fresh()
    output = dense.run()
    far = (1 << 31) + 64
    token, room = (1 << 30) + 64, 2 * far
    held = torch.from_file(str(tmp_path / "sparse"), shared=True, size=room, dtype=torch.float32)
    q = held.as_strided((3, 1, 16), (token, 16, 1))
    pool = held.as_strided((4, 1, 16, 16), (far // 2, 256, 16, 1), 1024)
    target = held.as_strided((4, 1, 16, 16), (far // 2, 256, 16, 1), 2048)
    q.copy_(x.q)
    pool[3] = x.pool[3]
    chunks = Chunks.of((3,), "cpu")
    slots = torch.full((len(chunks.table),), 3)  # the state after a ragged end is one, too
    assert torch.equal(x._replace(q=q, pool=pool).run(snapshots=Snapshots(target, slots)), output)
    assert torch.equal(pool[3], dense.pool[3])
    assert torch.equal(target[3], dense.pool[3])


def test_chunks_hold_every_token_once_and_no_sequence_twice_at_a_time() -> None:
    """However few chunks fit: tokens of a sequence in order, and states are never in two places at once."""
    lengths = (300, 0, 64, 1, 129)
    for span in (1, 2, 3, 5, 256):
        chunks = Chunks.of(lengths, "cpu", span)
        rows = chunks.table.tolist()
        covered = sorted(token for first, count in rows for token in range(first, first + count))
        assert covered == list(range(sum(lengths)))
        for part in chunks.spans:
            pieces = chunks.pieces[part.pieces].tolist()
            assert len({piece[0] for piece in pieces}) == len(pieces)
            assert part.chunks.stop - part.chunks.start <= span
        grids = [piece[4] for piece in chunks.pieces.tolist() if piece[0] == 4]
        assert grids == sorted(grids)
        assert grids[0] == 7


def test_snapshots_off_the_grid_are_refused() -> None:
    """A snapshot where no whole chunk ends is an error and not a neighbouring state."""
    chunks = Chunks.of((100, 64), "cpu")
    assert chunks.snapshot_slots({(0, 64): 5, (1, 64): 7}).tolist() == [5, -1, 7]
    for at in (0, 1, 63, 100, 128, -64):
        with pytest.raises(ValueError, match="multiple of 64"):
            chunks.snapshot_slots({(0, at): 1})


def test_no_tokens_touch_nothing() -> None:
    """A batch of empty sequences puts out nothing and leaves its slots."""
    x = make((0, 0))
    run = x.fresh()
    assert run.run().shape == (0, 1, 16)
    assert torch.equal(run.pool[x.slots], x.pool[x.slots])
