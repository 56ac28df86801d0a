"""The short convolution on a GPU, under Triton's interpreter: packed stretches, cuts anywhere, states by slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from evalgate.kernels.gpu.short_conv import Packed, Snapshots, short_conv, short_conv_update
from evalgate.kernels.short_conv import reference_short_conv

ROUNDING = 2e-6
"""float32 against float64: four products of size 1, and a sigmoid."""
BF16 = 2.0**-8
"""Relative: one rounding to bfloat16."""
CHANNELS = 20
LENGTHS = (0, 1, 2, 3, 16, 0, 17, 33)


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """What is not written is NaN: torch fills new memory with it in its deterministic mode."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def inputs(tokens: int, *, taps: int = 4, channels: int = CHANNELS, dtype: torch.dtype = torch.float32) -> Tensor:
    """Taps, then tokens, ``[taps + tokens, C]``, as a part of a wider tensor."""
    generator = torch.Generator().manual_seed(tokens)
    return torch.randn(taps + tokens, channels + 12, generator=generator).to(dtype)[:, 4:-8]


def states(slots: int, *, taps: int = 4, channels: int = CHANNELS, dtype: torch.dtype = torch.float32) -> Tensor:
    """One layer of a pool of two; slot 0 is scratch, and NaN."""
    pool = torch.randn(2, slots, taps - 1, channels, generator=torch.Generator().manual_seed(slots)).to(dtype)
    pool[:, 0] = torch.nan
    return pool[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("taps", [2, 3, 4])
def test_packed_stretches_are_the_equation(taps: int, dtype: torch.dtype) -> None:
    """Stretches of many lengths, empty ones too, each from its own state; padding rows are zeros, scratch is unread."""
    both = inputs(sum(LENGTHS) + 5, taps=taps, dtype=dtype)
    filters, x = both[:taps].contiguous(), both[taps:]
    pool = states(len(LENGTHS) + 2, taps=taps, dtype=dtype)
    before, slots = pool.clone(), torch.arange(len(LENGTHS), 0, -1)
    found = short_conv(x, filters, pool, Packed.of(LENGTHS, "cpu"), slots)
    assert found.dtype == dtype
    for piece, got, slot in zip(
        torch.split(x, [*LENGTHS, 5]), torch.split(found, [*LENGTHS, 5]), slots.tolist(), strict=False
    ):
        state = before[slot : slot + 1]
        if len(piece):
            output, after = reference_short_conv(piece[None].double(), filters.double(), state.double())
            torch.testing.assert_close(got.double(), output[0], atol=ROUNDING,
                                       rtol=ROUNDING if dtype == torch.float32 else BF16)  # fmt: skip
            state = after.to(dtype)
        assert torch.equal(pool[slot : slot + 1], state)
    assert (found[-5:] == 0.0).all()
    assert pool[0].isnan().all()
    assert torch.equal(pool[-1], before[-1])


@pytest.mark.parametrize("cuts", [(1, 1, 1, 1, 1, 8), (2, 11), (3, 1, 9), (0, 13), (12, 1)], ids=str)
def test_cuts_anywhere_give_the_same_bits(cuts: tuple[int, ...]) -> None:
    """Pieces shorter than the filter too: outputs and the state at the end are those of the whole."""
    both, whole, cut = inputs(13), states(2), states(2)
    filters, x, slots = both[:4].contiguous(), both[4:], torch.tensor([1])
    expected = short_conv(x, filters, whole, Packed.of([13], "cpu"), slots)
    found = [
        short_conv(part, filters, cut, Packed.of([len(part)], "cpu"), slots) for part in torch.split(x, list(cuts))
    ]
    assert torch.equal(torch.cat(found), expected)
    assert torch.equal(cut[1], whole[1])


def test_long_stretch() -> None:
    """Many programs of one sequence."""
    both, pool = inputs(250, channels=16), states(2, channels=16)
    filters, x = both[:4].contiguous(), both[4:]
    output, after = reference_short_conv(x[None].double(), filters.double(), pool[1:].double())
    found = short_conv(x, filters, pool, Packed.of([250], "cpu"), torch.tensor([1]))
    torch.testing.assert_close(found.double(), output[0], atol=ROUNDING, rtol=ROUNDING)
    assert torch.equal(pool[1:].double(), after)


def test_one_token_for_each_row_is_the_same_bits() -> None:
    """The step is the stretch of one token, for a batch whose slots lie anywhere; three steps in a row."""
    both, stretched, stepped = inputs(12), states(6), states(6)
    filters, slots = both[:4].contiguous(), torch.tensor([5, 1, 2, 4])
    for x in torch.split(both[4:], 4):
        expected = short_conv(x, filters, stretched, Packed.of([1] * 4, "cpu"), slots)
        assert torch.equal(short_conv_update(x, filters, stepped, slots), expected)
    assert torch.equal(stepped[1:], stretched[1:])
    assert stepped[0].isnan().all()


def test_forks_go_on_from_one_parent() -> None:
    """Each fork gets what it would get from a copy of the parent, which keeps every bit."""
    both, pool = inputs(9), states(6)
    filters, x, parents, slots = both[:4].contiguous(), both[4:], torch.tensor([3, 3, 3]), torch.tensor([1, 5, 2])
    packed, before = Packed.of([2, 0, 7], "cpu"), pool.clone()
    copies = before[[0, 3, 3, 3]]
    expected = short_conv(x, filters, copies, packed, torch.tensor([1, 2, 3]))
    assert torch.equal(short_conv(x, filters, pool, packed, slots, parents=parents), expected)
    assert torch.equal(pool[slots], copies[1:])
    assert torch.equal(pool[[3, 4]], before[[3, 4]])

    copies, pool = before[[0, 3, 3, 3]], before.clone()
    expected = short_conv_update(x[:3], filters, copies, torch.tensor([1, 2, 3]))
    assert torch.equal(short_conv_update(x[:3], filters, pool, slots, parents=parents), expected)
    assert torch.equal(pool[slots], copies[1:])


def test_masked_sequences_touch_nothing_and_give_zeros() -> None:
    """-1 as a slot or as a parent: no state is read or written, and NaN in such rows goes nowhere."""
    both, pool = inputs(20), states(4)
    filters, x = both[:4].contiguous(), both[4:].contiguous()
    x[:5], x[12:] = torch.nan, torch.nan
    before = pool.clone()
    slots, parents = torch.tensor([-1, 2, 3]), torch.tensor([1, 2, -1])
    snapshots = Snapshots.of(torch.full((2, 3, CHANNELS), 7.0), {(0, 5): 0, (2, 8): 1})
    found = short_conv(x, filters, pool, Packed.of([5, 7, 8], "cpu"), slots, parents=parents, snapshots=snapshots)
    assert (snapshots.pool == 7.0).all(), "of a masked sequence nothing is kept"
    assert (found[:5] == 0.0).all()
    assert (found[12:] == 0.0).all()
    expected = short_conv(x[5:12], filters, before.clone(), Packed.of([7], "cpu"), torch.tensor([2]))
    assert torch.equal(found[5:12], expected)
    assert torch.equal(pool[[1, 3]], before[[1, 3]])
    stepped = pool.clone()
    assert (short_conv_update(x[:3], filters, stepped, torch.tensor([-1, 2, -1]), parents=parents) == 0.0)[[0, 2]].all()
    assert torch.equal(stepped[[1, 3]], before[[1, 3]])
    assert (short_conv(x, filters, pool, Packed.of([], "cpu"), slots[:0]) == 0.0).all()


def test_snapshots_are_the_states_on_the_way() -> None:
    """At any token count, 0 and counts shorter than the filter too, in the slots that were named and no other."""
    both, pool, kept = inputs(90), states(3), torch.full((8, 3, CHANNELS), 7.0)
    filters, x, slots, lengths = both[:4].contiguous(), both[4:], torch.tensor([2, 1]), [70, 20]
    wanted = {(0, 64): 5, (1, 2): 3, (0, 0): 1, (1, 20): 6, (0, 1): 7, (1, 16): -1}
    before = pool.clone()
    short_conv(x, filters, pool, Packed.of(lengths, "cpu"), slots, snapshots=Snapshots.of(kept, wanted))
    for (sequence, tokens), slot in wanted.items():
        if slot >= 0:
            alone, start = before.clone(), 70 * sequence
            short_conv(x[start : start + tokens], filters, alone, Packed.of([tokens], "cpu"), slots[[sequence]])
            assert torch.equal(kept[slot], alone[slots[sequence]])
    assert (kept[[0, 2, 4]] == 7.0).all()


@pytest.mark.parametrize("changed", [0, 1, 15, 16, 17, 30])
def test_tokens_change_nothing_before_themselves(changed: int) -> None:
    """A token that turns into NaN reaches itself, the three after it in its sequence, and no other token."""
    both = inputs(40)
    filters, x, packed, slots = both[:4].contiguous(), both[4:].contiguous(), Packed.of([18, 22], "cpu"), [1, 2]
    expected = short_conv(x, filters, states(3), packed, torch.tensor(slots))
    x[changed] = torch.nan
    found = short_conv(x, filters, states(3), packed, torch.tensor(slots))
    reached = torch.arange(changed, min(changed + 4, 18 if changed < 18 else 40))
    assert torch.equal(found.isnan().all(dim=-1).nonzero()[:, 0], reached)
    others = torch.ones(40, dtype=torch.bool)
    others[reached] = False
    assert torch.equal(found[others], expected[others])


def test_offsets_beyond_two_to_the_31st_do_not_wrap(tmp_path: Path) -> None:
    """A slot that starts 2^31 numbers into a sparse pool gives what a near one gives, in both forms."""
    both, near = inputs(6, channels=16), states(2, channels=16, dtype=torch.bfloat16)
    filters, x = both[:4].contiguous(), both[4:]
    far = 2**31 // near[0].numel() + 3
    path = tmp_path / "pool"
    size = (far + 1) * near[0].numel()
    pool = torch.from_file(str(path), shared=True, size=size, dtype=torch.bfloat16).view(-1, 3, 16)
    pool[far] = near[1]
    packed = Packed.of([5], "cpu")
    expected = short_conv(x[:5], filters, near, packed, torch.tensor([1]))
    assert torch.equal(short_conv(x[:5], filters, pool, packed, torch.tensor([far])), expected)
    expected = short_conv_update(x[5:], filters, near, torch.tensor([1]))
    assert torch.equal(short_conv_update(x[5:], filters, pool, torch.tensor([far])), expected)
    assert torch.equal(pool[far], near[1])
    path.unlink()


def test_rows_far_apart_do_not_wrap(tmp_path: Path) -> None:
    """Four tokens that lie 2^30 numbers apart, in both forms."""
    both, path = inputs(4, channels=16, dtype=torch.bfloat16), tmp_path / "rows"
    filters, near, slots = both[:4].contiguous(), both[4:], torch.tensor([1, 2, 3, 4])
    x = torch.from_file(str(path), shared=True, size=3 * 2**30 + 16, dtype=torch.bfloat16)
    x = x.as_strided((4, 16), (2**30, 1))
    x[:] = near
    pools, packed = [states(5, channels=16, dtype=torch.bfloat16) for _ in range(2)], Packed.of([4], "cpu")
    for step in range(2):
        expected, found = (
            short_conv_update(rows, filters, pool, slots)
            if step
            else short_conv(rows, filters, pool, packed, slots[:1])
            for rows, pool in zip((near, x), pools, strict=True)
        )
        assert torch.equal(found, expected)
        assert torch.equal(pools[0][1:], pools[1][1:])
    path.unlink()
