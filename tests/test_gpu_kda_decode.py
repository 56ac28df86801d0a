"""The decode step on a GPU, under Triton's interpreter: the recurrence in float64, at the slots that were named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from evalgate.kernels.gpu.kda_decode import kda_decode
from evalgate.kernels.gpu.state_codec import StoredStates
from evalgate.kernels.kda_decode import reference_kda_decode
from evalgate.kernels.kda_gate import l2norm, reference_kda_gate
from evalgate.kernels.state_codec import Encoded, Int

ROUNDING = 1e-5
"""float32 against float64: sums of 128 products of size 1, and decays right to a few parts in a million."""
BF16 = 2.0**-8
"""Relative: one rounding to bfloat16."""
HEADS = 2


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """What is not written is NaN: torch fills new memory with it in its deterministic mode."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


class Step(NamedTuple):
    """What a layer hands to one step, in the order of the arguments; q, k and v are parts of one wider tensor."""

    q: Tensor
    k: Tensor
    v: Tensor
    f: Tensor
    beta: Tensor
    a_log: Tensor
    dt_bias: Tensor

    def rows(self, rows: list[int]) -> Step:
        """The same step of some of its rows."""
        q, k, v, f, beta = (x[rows] for x in self[:5])
        return Step(q, k, v, f, beta, self.a_log, self.dt_bias)


def step(rows: int, width: int, *, dtype: torch.dtype = torch.float32, seed: int = 0, size: float = 1.0) -> Step:
    """Random projections whose decays spread over -1e-4 to -40 a token."""
    generator = torch.Generator().manual_seed(1000 * width + seed)
    mixed = size * torch.randn(rows, 3 * HEADS * width + 32, generator=generator)
    q, k, v = torch.unflatten(mixed.to(dtype)[:, 16:-16], -1, (3, HEADS, width)).unbind(dim=1)
    f = torch.rand(rows, HEADS, width + 16, generator=generator).mul(25.0).sub(15.0).to(dtype)[..., 16:]
    beta = torch.randn(rows, HEADS + 1, 2, generator=generator).to(dtype)[:, 1:, 0]
    return Step(q, k, v, f, beta, torch.tensor([1.4, -0.5]), torch.randn(HEADS, width, generator=generator))


def states(slots: int, width: int) -> Tensor:
    """One layer of a pool of two; slot 0 is scratch, and NaN."""
    generator = torch.Generator().manual_seed(width)
    pool = torch.randn(2, slots, HEADS, width, width, generator=generator)
    pool[:, 0] = torch.nan
    return pool[1]


def expected(x: Step, pool: Tensor, parents: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    """Outputs and new states of each row, in float64, as the paper states them."""
    q, k, v, f, beta, a_log, dt_bias = (t.double() for t in x)
    own = pool.double()[parents]
    g = reference_kda_gate(f, a_log, dt_bias)
    output = reference_kda_decode(q=l2norm(q, scale), k=l2norm(k), v=v, g=g, beta=beta.sigmoid(), pool=own,
                                  slots=torch.arange(len(q)))  # fmt: skip
    return output, own


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_step_is_the_recurrence(width: int, dtype: torch.dtype) -> None:
    """Every head size, fast and slow channels; slots that were not named keep every bit, scratch stays NaN."""
    x, pool, slots = step(3, width, dtype=dtype), states(6, width), torch.tensor([4, 1, 3])
    before, (output, new) = pool.clone(), expected(x, pool, slots, scale=width**-0.5)
    found = kda_decode(*x, StoredStates(pool), slots, slots, scale=width**-0.5)
    assert found.dtype == dtype
    rounding = ROUNDING if dtype == torch.float32 else BF16
    torch.testing.assert_close(found.double(), output, atol=ROUNDING, rtol=rounding)
    torch.testing.assert_close(pool[slots].double(), new, atol=ROUNDING, rtol=ROUNDING)
    assert torch.equal(pool[[2, 5]], before[[2, 5]])
    assert pool[0].isnan().all()


def test_many_steps_are_the_recurrence() -> None:
    """Forty tokens in place, compared at the end: no error that grows."""
    pool, slots = states(2, 32), torch.tensor([1])
    exact = pool.double()
    for token in range(40):
        x = step(1, 32, seed=token)
        output, exact[1:] = expected(x, exact, slots, scale=0.2)
        found = kda_decode(*x, StoredStates(pool), slots, slots, scale=0.2)
        torch.testing.assert_close(found.double(), output, atol=ROUNDING, rtol=ROUNDING)
    torch.testing.assert_close(pool[1:].double(), exact[1:], atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize("size", [1e-3, 1e4])
def test_size_of_projections_does_not_matter(size: float) -> None:
    """Queries and keys are normalised first, and values of any size keep their relative error."""
    x, pool, slots = step(2, 64, size=size), states(3, 64) * size, torch.tensor([1, 2])
    output, new = expected(x, pool, slots, scale=1.0)
    found = kda_decode(*x, StoredStates(pool), slots, slots, scale=1.0)
    torch.testing.assert_close(found.double(), output, atol=ROUNDING * size, rtol=ROUNDING)
    torch.testing.assert_close(pool[1:].double(), new, atol=ROUNDING * size, rtol=ROUNDING)


@pytest.mark.parametrize("form", ["fp32", "bf16", "int8"])
def test_forks_read_one_parent_and_write_slots_of_their_own(form: str) -> None:
    """Each fork gets bitwise what it would get alone from a copy of the parent, which keeps every bit."""
    x, parents, slots = step(3, 32), torch.tensor([2, 2, 2]), torch.tensor([5, 1, 4])
    pool = stored(states(6, 32), form)
    copies = copied(pool, [0, 2, 2, 2])
    before = pool.codes.clone()
    together = kda_decode(*x, pool, parents, slots, scale=1.0)
    for row in range(3):
        own = torch.tensor([row + 1])
        assert torch.equal(kda_decode(*x.rows([row]), copies, own, own, scale=1.0)[0], together[row])
    for part, copy in zip(pool, copies, strict=True):
        assert part is None or copy is None or torch.equal(part[slots], copy[1:])
    assert torch.equal(pool.codes[[2, 3]], before[[2, 3]])


@pytest.mark.parametrize("form", ["fp32", "int8"])
def test_masked_rows_touch_nothing_and_give_zeros(form: str) -> None:
    """-1 as a parent or as a slot: no state is read, none is written, the last slot and scratch least of all."""
    x, pool = step(5, 16), stored(states(4, 16), form)
    before, alone = copied(pool, [0, 1, 2, 3]), copied(pool, [0, 1, 2, 3])
    found = kda_decode(*x, pool, torch.tensor([-1, 1, 3, 2, -1]), torch.tensor([-1, -1, 3, 2, 1]), scale=1.0)
    assert (found[[0, 1, 4]] == 0.0).all()
    assert found[2:4].isfinite().all()
    kda_decode(*x.rows([2, 3]), alone, torch.tensor([3, 2]), torch.tensor([3, 2]), scale=1.0)
    for part, old, lone in zip(pool, before, alone, strict=True):
        if part is not None and old is not None and lone is not None:
            assert torch.equal(part[1], old[1])
            assert torch.equal(part[2:], lone[2:])
            assert torch.equal(part[0].nan_to_num(7.0), old[0].nan_to_num(7.0))


def stored(pool: Tensor, form: str) -> StoredStates:
    """A pool in one of the forms that a step reads in place."""
    if form == "int8":
        return StoredStates(*Int(8).encode(pool).tensors)
    return StoredStates(pool if form == "fp32" else pool.bfloat16())


def copied(pool: StoredStates, slots: list[int]) -> StoredStates:
    """Those states in slots of another pool."""
    return StoredStates(pool.codes[slots], None if pool.scales is None else pool.scales[slots])


def test_bfloat16_states_are_widened_and_rounded_once() -> None:
    """The output is that of the exact step; the state is that step rounded to bfloat16."""
    x, pool, slots = step(2, 64), stored(states(3, 64), "bf16"), torch.tensor([2, 1])
    output, new = expected(x, pool.codes, slots, scale=1.0)
    found = kda_decode(*x, pool, slots, slots, scale=1.0)
    torch.testing.assert_close(found.double(), output, atol=ROUNDING, rtol=ROUNDING)
    torch.testing.assert_close(pool.codes[slots].double(), new, atol=ROUNDING, rtol=BF16)


@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_int8_states_are_the_codes_of_the_step(width: int) -> None:
    """Scales of the exact new state, and its codes but where a quotient is half-way up to rounding."""
    x, pool, slots = step(2, width), stored(states(3, width), "int8"), torch.tensor([2, 1])
    assert pool.scales is not None
    decoded = Int(8).decode(Encoded((pool.codes, pool.scales)), torch.float64)
    output, new = expected(x, decoded, slots, scale=1.0)
    found = kda_decode(*x, pool, slots, slots, scale=1.0)
    codes, scales = Int(8).encode(new).tensors
    torch.testing.assert_close(found.double(), output, atol=ROUNDING, rtol=ROUNDING)
    torch.testing.assert_close(pool.scales[slots], scales, atol=0.0, rtol=ROUNDING)
    apart = (pool.codes[slots].int() - codes.int()).abs()
    assert apart.max() <= 1
    assert apart.float().mean() < 1e-3


def test_int8_states_that_nothing_changes_keep_their_codes() -> None:
    """No decay and nothing written: decoding and encoding again gives the same codes, token after token."""
    x, pool = step(1, 64), stored(states(2, 64), "int8")
    x = x._replace(f=torch.full_like(x.f, -torch.inf), beta=torch.full_like(x.beta, -torch.inf))
    assert pool.scales is not None
    codes, scales, slots = pool.codes.clone(), pool.scales.clone(), torch.tensor([1])
    for _ in range(3):
        kda_decode(*x, pool, slots, slots, scale=1.0)
    assert torch.equal(pool.codes, codes)
    torch.testing.assert_close(pool.scales[1], scales[1], atol=0.0, rtol=1e-6)


@pytest.mark.parametrize("size", [1.0, 7.0])
def test_int8_codes_half_way_are_the_even_ones(size: float) -> None:
    """A step that puts values where zeros were: a quotient of exactly a half more becomes the even code beside it.

    The seventh of 118.5 sevens is 118.5 only where the quotient is right to the last bit.
    """
    x, pool, slots = step(1, 16), stored(states(2, 16), "int8"), torch.tensor([1])
    pool.codes[1] = 0
    k, v = torch.zeros_like(x.k), torch.zeros_like(x.v)
    k[..., 0] = 1e4  # a unit vector to the last bit
    v[..., :8] = size * torch.tensor([127, 0.5, 1.5, 2.5, -0.5, -1.5, -118.5, 118.5])
    kda_decode(*x._replace(k=k, v=v, beta=torch.full_like(x.beta, torch.inf)), pool, slots, slots, scale=1.0)
    assert pool.codes[1, :, 0, :8].tolist() == [[127, 0, 2, 2, 0, -2, -118, 118]] * HEADS


def test_int8_rows_that_faded_away_become_zeros() -> None:
    """Scales below 2^-100 are stored as 0, with codes of 0: nothing divides by them."""
    x, pool, slots = step(1, 16), stored(states(2, 16), "int8"), torch.tensor([1])
    x = x._replace(beta=torch.full_like(x.beta, -torch.inf))
    assert pool.scales is not None
    pool.scales[1, 0, :4] = torch.tensor([0.0, 1e-42, 1e-36, 1e-31])
    kda_decode(*x, pool, slots, slots, scale=1.0)
    assert (pool.scales[1, 0, :4] == 0.0).all()
    assert (pool.codes[1, 0, :4] == 0).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy names NaN and infinity where a GPU is silent
@pytest.mark.parametrize("form", ["fp32", "int8"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_numbers_stay_in_their_row_and_are_seen(form: str, bad: float) -> None:
    """A bad state gives a bad answer in its own head and row, and no other."""
    x, pool, slots = step(2, 16), states(3, 16), torch.tensor([1, 2])
    pool[2, 1, 3, 5] = bad
    held = stored(pool, form)
    found = kda_decode(*x, held, slots, slots, scale=1.0)
    assert found[0].isfinite().all()
    assert found[1, 0].isfinite().all()
    assert not found[1, 1].isfinite().all()
    after = held.codes if held.scales is None else held.scales
    assert after[1].isfinite().all()
    assert not after[2, 1].isfinite().all()


@pytest.mark.parametrize("form", ["fp32", "int8"])
def test_offsets_beyond_two_to_the_31st_do_not_wrap(form: str, tmp_path: Path) -> None:
    """A slot that starts 2^31 numbers into a sparse pool gives what a near one gives."""
    near = stored(states(2, 16), form)
    far = 2**31 // near.codes[0].numel() + 3
    path = tmp_path / "pool"
    size = (far + 1) * near.codes[0].numel()
    codes = torch.from_file(str(path), shared=True, size=size, dtype=near.codes.dtype).view(-1, *near.codes.shape[1:])
    codes[far] = near.codes[1]
    scales = None if near.scales is None else near.scales[:1].expand(far + 1, -1, -1).contiguous()
    if scales is not None and near.scales is not None:
        scales[far] = near.scales[1]
    x = step(1, 16)
    output = kda_decode(*x, near, torch.tensor([1]), torch.tensor([1]), scale=1.0)
    assert torch.equal(kda_decode(*x, StoredStates(codes, scales), torch.tensor([far]), torch.tensor([far]), scale=1.0),
                       output)  # fmt: skip
    assert torch.equal(codes[far], near.codes[1])
    path.unlink()
