"""Stored forms on a GPU, under Triton's interpreter: bit for bit those of the CPU, at the slots that were named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from evalgate.kernels.gpu.state_codec import StoredStates, decode, encode, round_trip
from evalgate.kernels.state_codec import Bf16, Encoded, Exact, Int, StateForm

FORMS: dict[int, StateForm] = {32: Exact(), 16: Bf16(), 8: Int(8), 4: Int(4)}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy names NaN and infinity where a GPU is silent
LAYERS, SLOTS, HEADS = 2, 4, 3
UNTOUCHED = 77
"""What slots hold that nobody named; a code and a number in every form."""


def states(width: int, *, keys: int | None = None) -> Tensor:
    """``[layers, slots, H, K, V]`` whose rows differ in size by decades; slot 0 is NaN."""
    generator = torch.Generator().manual_seed(width)
    shape = (LAYERS, SLOTS, HEADS, keys or width, width)
    sizes = 10.0 ** torch.randint(-6, 7, (*shape[:-1], 1), generator=generator)
    pool = torch.randn(shape, generator=generator) * sizes
    pool[:, 0] = torch.nan
    return pool


def storage(form: StateForm, shape: tuple[int, ...]) -> StoredStates:
    """Snapshot slots ``[slots, layers, ...]`` seen layer first, as a pool of snapshots lays them out."""
    layers, slots, *state = shape
    tensors = [
        torch.full((slots, *spec.shape), UNTOUCHED, dtype=spec.dtype).transpose(0, 1)
        for spec in form.specs((layers, *state), torch.float32)
    ]
    return StoredStates(*tensors)


def encoded(stored: StoredStates, slot: int) -> Encoded:
    """What one slot holds, as the CPU forms take it."""
    return Encoded(tuple(x[:, slot] for x in stored if x is not None))


def same(found: Encoded, expected: Encoded) -> bool:
    """Equal bits, NaN at the same places."""
    return all(
        torch.equal(a.nan_to_num(1.5), b.nan_to_num(1.5)) if b.is_floating_point() else torch.equal(a, b)
        for a, b in zip(found.tensors, expected.tensors, strict=True)
    )


@pytest.mark.parametrize("bits", FORMS)
@pytest.mark.parametrize("width", [16, 64, 128])
def test_codes_are_those_of_the_cpu_form(bits: int, width: int) -> None:
    """Every layer of two slots in one launch: equal codes and scales, and equal states when they come back."""
    pool, form = states(width), FORMS[bits]
    stored = storage(form, tuple(pool.shape))
    encode(pool, torch.tensor([3, -1, 1]), stored, torch.tensor([1, 2, 3]))
    for source, target in ((3, 1), (1, 3)):
        assert same(encoded(stored, target), form.encode(pool[:, source]))
    assert all((x[:, slot] == UNTOUCHED).all() for x in stored if x is not None for slot in (0, 2))

    back = torch.full_like(pool, torch.nan)
    decode(stored, torch.tensor([1, 2, 3]), back, torch.tensor([2, -1, 3]))
    for source, target in ((3, 2), (1, 3)):
        assert torch.equal(back[:, target], form.round_trip(pool[:, source]))
    assert back[:, :2].isnan().all()


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_round_trip_leaves_what_storing_leaves(bits: int) -> None:
    """In place, on one layer's view of a pool, at its slots only; the other layer and slots keep every bit."""
    pool = states(32)
    expected = pool.clone()
    expected[1, [2, 3]] = FORMS[bits].round_trip(pool[1, [2, 3]])
    round_trip(pool[1], torch.tensor([2, -1, 3]), bits)
    assert torch.equal(pool[:, 1:], expected[:, 1:])
    assert pool[:, 0].isnan().all()


@pytest.mark.parametrize("bits", [8, 4])
def test_ties_round_half_to_even(bits: int) -> None:
    """Quotients that end in exactly one half go to the even neighbour, as on the CPU."""
    top = 2 ** (bits - 1) - 1
    halves = torch.arange(-16.0, 16.0).div(2.0).clamp(-top, top)
    pool = halves.repeat(1, 1, 16, 1)
    pool[..., -1] = top
    round_trip(pool, torch.tensor([0]), bits)
    assert torch.equal(pool[0, 0, 0, :-1], halves[:-1].round())


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_numbers_stay_visible_in_their_row(bits: int, bad: float) -> None:
    """A NaN or an infinity makes its own row NaN once it comes back, the other rows stay as they would be."""
    pool = states(16)[:, 1:]
    pool[0, 1, 2, 5, 3] = bad
    stored = storage(FORMS[bits], tuple(pool.shape))
    slots = torch.arange(3)
    encode(pool, slots, stored, slots)
    assert all(same(encoded(stored, slot), FORMS[bits].encode(pool[:, slot])) for slot in range(3))
    decode(stored, slots, pool, slots)
    assert pool[0, 1, 2, 5].isnan().all()
    assert pool.isnan().sum() == 16


@pytest.mark.parametrize("bits", [8, 4])
def test_zeros_and_denormals_do_not_divide_by_zero(bits: int) -> None:
    """Rows of zeros stay zeros; rows so small that their scale is rough keep codes in range, as on the CPU."""
    pool = torch.zeros(1, 2, 1, 16, 16)
    pool[0, 1, 0, :8] = torch.arange(1, 129).view(8, 16) * torch.finfo(torch.float32).smallest_normal / 2**23
    stored = storage(FORMS[bits], tuple(pool.shape))
    encode(pool, torch.tensor([0, 1]), stored, torch.tensor([0, 1]))
    assert same(encoded(stored, 0), FORMS[bits].encode(pool[:, 0]))
    assert same(encoded(stored, 1), FORMS[bits].encode(pool[:, 1]))


def test_offsets_beyond_two_to_the_31st_do_not_wrap(tmp_path: Path) -> None:
    """A slot that starts 2^31 numbers into a sparse pool is read and written there."""
    size, far = 16 * 16, 2**31 // 256 + 3
    path = tmp_path / "pool"
    pool = torch.from_file(str(path), shared=True, size=(far + 1) * size, dtype=torch.float32).view(-1, 1, 16, 16)
    pool[far] = states(16)[0, 1, :1]
    expected = Int(8).round_trip(pool[far].clone())
    stored = storage(Int(8), (1, 2, 1, 16, 16))
    flat = StoredStates(stored.codes[0], None if stored.scales is None else stored.scales[0])
    encode(pool, torch.tensor([far]), flat, torch.tensor([1]))
    assert same(encoded(stored, 1), Int(8).encode(pool[far][None]))
    round_trip(pool, torch.tensor([far]), 8)
    assert torch.equal(pool[far], expected)
    path.unlink()
