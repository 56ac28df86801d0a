"""Forms of stored states and latents: what they can still hold, the bytes that they take, and what they cannot hide."""

from __future__ import annotations

import pytest
import torch

from evalgate.kernels.latent_codec import (
    FloatLatents,
    Fp8Latents,
    Int8Latents,
    LatentCodec,
    ScaledLatents,
    machine_has_fp8,
)
from evalgate.kernels.state_codec import Bf16, Encoded, Exact, Int, IntWidth, Rank, StateForm, strongest

FORMS: list[StateForm] = [
    *(Exact(), Bf16(), Int(8), Int(4)),
    *(Rank(2, Exact()), Rank(2, Bf16()), Rank(2, Int(8)), Rank(2, Int(4))),
]
LOSSY = [form for form in FORMS if form != Exact()]

LATENT, SHARED = 12, 4
CODECS: dict[str, LatentCodec] = {
    "fp32": FloatLatents(LATENT + SHARED, torch.float32, torch.float32),
    "bf16": FloatLatents(LATENT + SHARED, torch.bfloat16, torch.float32),
    "int8": Int8Latents(LATENT, SHARED, torch.float32),
    "fp8": Fp8Latents(LATENT, SHARED, torch.float32),
}
SCALED: list[ScaledLatents] = [Int8Latents(LATENT, SHARED, torch.float32), Fp8Latents(LATENT, SHARED, torch.float32)]

DENORMAL = 1.4e-45
"""The smallest positive float32."""


def states() -> torch.Tensor:
    """Random states ``[2, 3, 16, 10]`` whose key channels differ in size by orders of magnitude."""
    torch.manual_seed(0)
    return torch.randn(2, 3, 16, 10) * torch.logspace(-3, 2, 16)[:, None]


def latents() -> torch.Tensor:
    """Random rows ``[5, 16]`` of unlike tokens, with a large latent and a small shared part."""
    torch.manual_seed(0)
    rows = torch.cat([torch.randn(5, LATENT) * 100, torch.randn(5, SHARED) * 0.01], dim=-1)
    rows[3] *= 1000
    return rows


@pytest.mark.parametrize("bits", [8, 4])
def test_integers_err_by_half_a_step_of_their_channel(bits: IntWidth) -> None:
    """Each key channel has a scale of its own, so a large neighbour costs a small channel nothing."""
    state = states()
    decoded = Int(bits).round_trip(state)
    step = state.abs().amax(dim=-1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert ((decoded - state).abs() <= step * 0.5001).all()
    assert Int(bits).encode(state).nbytes == 2 * 3 * 16 * (10 * bits // 8 + 4)
    torch.testing.assert_close(Int(bits).round_trip(decoded), decoded, atol=0, rtol=1e-6)


def test_every_four_bit_code_survives_packing() -> None:
    """Codes -7 to 7 come back from their nibbles, each at its place."""
    state = torch.arange(-7, 9.0).clamp(max=7).repeat(2, 1)
    assert Int(4).encode(state).tensors[0].dtype == torch.uint8
    assert torch.equal(Int(4).round_trip(state), state)


def test_bfloat16_keeps_eight_bits() -> None:
    """Relative error at most 2^-8, half the bytes."""
    state = states()
    assert ((Bf16().round_trip(state) - state).abs() <= state.abs() * 2**-8).all()
    assert Bf16().encode(state).nbytes * 2 == state.nbytes


@pytest.mark.parametrize("rank", [1, 2, 4, 8])
def test_rank_keeps_the_strongest_directions(rank: int) -> None:
    """A state of that rank survives; of a full one the best approximation of that rank stays (Eckart-Young)."""
    torch.manual_seed(1)
    form = Rank(rank, Exact())
    low = torch.randn(3, 16, rank) @ torch.randn(3, rank, 10)
    torch.testing.assert_close(form.round_trip(low), low, atol=1e-4, rtol=1e-4)
    assert form.encode(low).nbytes == 3 * rank * (16 + 10) * 4
    full = torch.randn(16, 10, dtype=torch.float64)
    lost = torch.linalg.svdvals(full)[rank:].square().sum().sqrt()
    assert (form.round_trip(full) - full).norm().item() == pytest.approx(lost.item())


@pytest.mark.parametrize("factors", [Bf16(), Int(8), Int(4)], ids=str)
def test_factors_of_a_low_rank_may_be_rounded(factors: StateForm) -> None:
    """A weak direction keeps its precision beside a strong one: each is rounded on a scale of its own."""
    torch.manual_seed(1)
    left, sizes = torch.linalg.qr(torch.randn(3, 16, 2)).Q, torch.tensor([1000.0, 1.0])
    right = torch.zeros(3, 10, 2)
    right[:, :5, 0], right[:, 5:, 1] = torch.randn(3, 5), torch.randn(3, 5)
    state = left @ torch.diag(sizes) @ (right / right.norm(dim=1, keepdim=True)).mT
    lost = Rank(2, factors).round_trip(state) - state
    # Each direction has value channels of its own, so neither's rounding error can be seen in the other's.
    for part in (slice(0, 5), slice(5, 10)):
        assert lost[..., part].norm() < {Bf16(): 2**-7, Int(8): 0.02, Int(4): 0.3}[factors] * state[..., part].norm()
    assert Rank(2, factors).encode(state).nbytes < Rank(2, Exact()).encode(state).nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_stored_tensors_are_as_specified(form: StateForm, dtype: torch.dtype) -> None:
    """Shapes and dtypes are known before there is a state, and a store made from them holds it."""
    state = states().to(dtype)
    specs = form.specs(tuple(state.shape), dtype)
    encoded = form.encode(state)
    assert [(tuple(x.shape), x.dtype) for x in encoded.tensors] == [tuple(spec) for spec in specs]
    assert sum(spec.nbytes for spec in specs) == encoded.nbytes
    assert all(spec.shape[:2] == (2, 3) for spec in specs)
    store = [torch.zeros(spec.shape, dtype=spec.dtype) for spec in specs]
    for part, value in zip(store, encoded.tensors, strict=True):
        part[1, 2] = value[1, 2]
    found = form.decode(Encoded(tuple(part[1, 2] for part in store)), dtype)
    torch.testing.assert_close(found, form.round_trip(state)[1, 2])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_zeroed_or_poisoned_store_says_so(form: StateForm) -> None:
    """All zeros decode to zeros, a zero state to zeros, and NaN in the last tensor to NaN everywhere."""
    zero = torch.zeros(2, 8, 8)
    assert torch.equal(form.round_trip(zero), zero)
    specs = form.specs((2, 8, 8), torch.float32)
    store = tuple(torch.zeros(spec.shape, dtype=spec.dtype) for spec in specs)
    assert torch.equal(form.decode(Encoded(store), torch.float32), zero)
    store[-1][1] = torch.nan
    decoded = form.decode(Encoded(store), torch.float32)
    assert decoded[1].isnan().all()
    assert torch.equal(decoded[0], zero[0])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("form", LOSSY, ids=str)
def test_a_state_gone_bad_stays_bad_and_alone(form: StateForm, bad: float) -> None:
    """NaN or infinity in one head's state is not hidden by a form, and does not reach its neighbours."""
    state = states()
    expected = form.round_trip(state)
    state[1, 2, 3, 4] = bad
    found = form.round_trip(state)
    assert not found[1, 2].isfinite().all()
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1, :2], expected[1, :2])


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e30])
@pytest.mark.parametrize("bits", [8, 4])
def test_codes_of_huge_and_tiny_states_do_not_wrap(bits: IntWidth, size: float) -> None:
    """Where a scale is so small that it is rough, the largest entries saturate and keep their sign."""
    state = torch.linspace(-1, 1, 12).repeat(4, 1) * size * torch.linspace(1, 30, 4)[:, None]
    decoded = Int(bits).round_trip(state)
    limit = state.abs().amax(dim=-1, keepdim=True) / (2**bits - 2) + 2**bits * DENORMAL
    assert ((decoded - state).abs() <= limit * 1.0001).all()
    assert (decoded * state.sign() >= 0).all()


@pytest.mark.parametrize("codec", SCALED, ids=["int8", "fp8"])
def test_latents_have_a_scale_for_each_token_and_part(codec: ScaledLatents) -> None:
    """A token's small shared part keeps its precision beside a large latent, and tokens do not share scales."""
    rows = latents()
    decoded = codec.as_stored(rows)
    for part in (slice(0, LATENT), slice(LATENT, None)):
        step = rows[:, part].abs().amax(dim=-1, keepdim=True) / codec.top
        # int8: half a step; fp8: half of the last of three bits, or of the smallest step near zero.
        error = step * 0.5 if codec.code == torch.int8 else (rows[:, part].abs() * 2**-4).maximum(step * 2**-10)
        assert ((decoded[:, part] - rows[:, part]).abs() <= error * 1.0001).all()


def test_fp8_codes_are_the_numbers_that_torch_says() -> None:
    """The table gives what torch converts each of the 256 codes to, the two NaN included."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).view(16, 16)
    found = Fp8Latents(LATENT, SHARED, torch.float32).decode((codes, torch.ones(16, 2)))
    torch.testing.assert_close(found, codes.float(), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("name", CODECS)
def test_columns_of_latents_are_as_specified(name: str) -> None:
    """Stores made from the columns hold rows of any leading shape, at the bytes that are told for one row."""
    codec, rows = CODECS[name], latents().view(5, 1, -1)
    encoded = codec.encode(rows)
    assert [(tuple(x.shape), x.dtype) for x in encoded] == [((5, 1, c.width), c.dtype) for c in codec.columns]
    assert codec.row_bytes * 5 == sum(x.nbytes for x in encoded)
    expected = {"fp32": 64, "bf16": 32, "int8": 16 + 8, "fp8": 16 + 8}
    assert codec.row_bytes == expected[name]
    store = [torch.zeros(7, c.width, dtype=c.dtype) for c in codec.columns]
    chosen = torch.tensor([6, 0, 3, 2, 5])
    for column, part in zip(store, encoded, strict=True):
        column[chosen] = part[:, 0]
    assert torch.equal(codec.decode(tuple(column[chosen] for column in store)), codec.as_stored(rows)[:, 0])


@pytest.mark.parametrize("name", CODECS)
def test_zeroed_and_poisoned_rows_say_so(name: str) -> None:
    """Rows of zeros come back as zeros, so does a zeroed store, and NaN in the last column comes back as NaN."""
    codec, zero = CODECS[name], torch.zeros(3, LATENT + SHARED)
    assert torch.equal(codec.as_stored(zero), zero)
    store = tuple(torch.zeros(3, c.width, dtype=c.dtype) for c in codec.columns)
    assert torch.equal(codec.decode(store), zero)
    store[-1][1] = torch.nan
    decoded = codec.decode(store)
    assert decoded[1].isnan().all()
    assert torch.equal(decoded[::2], zero[::2])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", CODECS)
def test_a_token_gone_bad_stays_bad_and_alone(name: str, bad: float) -> None:
    """NaN or infinity in one token's latent is still visible when read back, and in no other token."""
    codec, rows = CODECS[name], latents()
    expected = codec.as_stored(rows)
    rows[2, 5] = bad
    found = codec.as_stored(rows)
    assert not found[2].isfinite().all()
    assert torch.equal(found[[0, 1, 3, 4]], expected[[0, 1, 3, 4]])


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e30])
@pytest.mark.parametrize("codec", SCALED, ids=["int8", "fp8"])
def test_codes_of_huge_and_tiny_latents_do_not_wrap(codec: ScaledLatents, size: float) -> None:
    """Neither a wrapped code nor fp8's NaN comes out of rows at either end of float32."""
    rows = torch.linspace(-1, 1, LATENT + SHARED).repeat(4, 1) * size * torch.linspace(1, 30, 4)[:, None]
    decoded = codec.as_stored(rows)
    limit = rows.abs().amax(dim=-1, keepdim=True) / 16 + 2 * codec.top * DENORMAL
    assert ((decoded - rows).abs() <= limit).all()
    assert (decoded * rows.sign() >= 0).all()


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_rows_are_read_in_the_compute_dtype(compute: torch.dtype) -> None:
    """Whatever they are stored in; rows stored in it are read without a copy."""
    rows = latents().to(compute)
    codecs = [
        FloatLatents(16, torch.bfloat16, compute),
        Int8Latents(LATENT, SHARED, compute),
        Fp8Latents(LATENT, SHARED, compute),
    ]
    assert all(codec.as_stored(rows).dtype == compute for codec in codecs)
    assert FloatLatents(16, compute, compute).as_stored(rows).data_ptr() == rows.data_ptr()


def test_machine_says_whether_it_has_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Yes where storing and reading back works, no where torch refuses or gives other numbers."""
    assert machine_has_fp8() is True
    assert machine_has_fp8("meta") is False
    monkeypatch.setattr(torch, "float8_e4m3fn", torch.int8)
    assert machine_has_fp8() is False


@pytest.mark.parametrize("rank", [1, 7, 20])
def test_strongest_directions_are_those_of_the_full_decomposition(rank: int) -> None:
    """Whole matrices, ones that a truncation and some tokens left, both in one batch, and zeros."""
    generator = torch.Generator().manual_seed(5)
    whole = torch.randn(3, 2, 32, 32, generator=generator, dtype=torch.float64)
    columns = torch.randn(3, 2, 32, rank + 2, generator=generator, dtype=torch.float64)
    thin = columns @ torch.randn(3, 2, rank + 2, 32, generator=generator, dtype=torch.float64)
    noisy = thin + 1e-8 * whole  # what float32 arithmetic leaves beside a low rank
    for matrix in (whole, thin, noisy, torch.cat([whole, thin]), torch.zeros_like(whole)):
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        expected = (left[..., :rank] * values[..., None, :rank]) @ right[..., :rank, :]
        found = strongest(matrix, rank)
        torch.testing.assert_close(matrix @ found @ found.mT, expected, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(
            found.mT @ found, torch.eye(rank, dtype=torch.float64).expand(*found.shape[:2], -1, -1)
        )
