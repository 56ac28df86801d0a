"""Codecs: what a compressed state or cache can still hold, and the bytes that it takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from evalgate.kernels import state_codec
from evalgate.kernels.latent_codec import decode_latents, encode_latents

RoundTrip = Callable[[torch.Tensor], torch.Tensor]

ROUND_TRIPS: list[RoundTrip] = [
    lambda x: state_codec.decode_rank(state_codec.encode_rank(x, 2), torch.float32),
    lambda x: state_codec.decode_int(state_codec.encode_int(x, 8), 8, torch.float32),
    lambda x: state_codec.decode_int(state_codec.encode_int(x, 4), 4, torch.float32),
    lambda x: state_codec.decode_bf16(state_codec.encode_bf16(x), torch.float32),
]


def states() -> torch.Tensor:
    """Random states ``[2, 3, 16, 10]`` whose key channels differ in size by orders of magnitude."""
    torch.manual_seed(0)
    return torch.randn(2, 3, 16, 10) * torch.logspace(-3, 2, 16)[:, None]


@pytest.mark.parametrize("bits", [8, 4])
def test_integers_err_by_half_a_step_of_their_channel(bits: state_codec.IntWidth) -> None:
    """Each key channel has a scale of its own, so a large neighbour costs a small channel nothing."""
    state = states()
    encoded = state_codec.encode_int(state, bits)
    decoded = state_codec.decode_int(encoded, bits, torch.float32)
    step = state.abs().amax(dim=-1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert ((decoded - state).abs() <= step * 0.5001).all()
    assert encoded.nbytes == 2 * 3 * 16 * (10 * bits // 8 + 4)
    again = state_codec.decode_int(state_codec.encode_int(decoded, bits), bits, torch.float32)
    torch.testing.assert_close(again, decoded, atol=0, rtol=1e-6)


def test_every_four_bit_code_survives_packing() -> None:
    """Codes -7 to 7 come back from their nibbles, each at its place."""
    state = torch.arange(-7, 9.0).clamp(max=7).repeat(2, 1)
    encoded = state_codec.encode_int(state, 4)
    assert encoded.tensors[0].dtype == torch.uint8
    assert torch.equal(state_codec.decode_int(encoded, 4, torch.float32), state)


def test_bfloat16_keeps_eight_bits() -> None:
    """Relative error at most 2^-8, half the bytes."""
    state = states()
    encoded = state_codec.encode_bf16(state)
    decoded = state_codec.decode_bf16(encoded, torch.float32)
    assert ((decoded - state).abs() <= state.abs() * 2**-8).all()
    assert encoded.nbytes * 2 == state.nbytes


@pytest.mark.parametrize("rank", [1, 2, 4, 8])
def test_rank_keeps_the_strongest_directions(rank: int) -> None:
    """A state of that rank survives; of a full one the best approximation of that rank stays (Eckart-Young)."""
    torch.manual_seed(1)
    low = torch.randn(3, 16, rank) @ torch.randn(3, rank, 10)
    encoded = state_codec.encode_rank(low, rank)
    torch.testing.assert_close(state_codec.decode_rank(encoded, torch.float32), low, atol=1e-4, rtol=1e-4)
    assert encoded.nbytes == 3 * rank * (16 + 10) * 4
    full = torch.randn(16, 10, dtype=torch.float64)
    decoded = state_codec.decode_rank(state_codec.encode_rank(full, rank), torch.float64)
    lost = torch.linalg.svdvals(full)[rank:].square().sum().sqrt()
    assert (decoded - full).norm().item() == pytest.approx(lost.item())


def test_a_state_of_zeros_stays_zero() -> None:
    """An empty session's state has no scale; nothing divides by it."""
    zero = torch.zeros(2, 8, 8)
    for bits in (4, 8):
        encoded = state_codec.encode_int(zero, bits)
        assert torch.equal(state_codec.decode_int(encoded, bits, torch.float32), zero)
    assert torch.equal(state_codec.decode_rank(state_codec.encode_rank(zero, 2), torch.float32), zero)
    latents = decode_latents(encode_latents(torch.zeros(3, 10), 8), 8, torch.float32)
    assert torch.equal(latents, torch.zeros(3, 10))


def test_latents_have_a_scale_for_each_token_and_part() -> None:
    """A token's small shared part keeps its precision beside a large latent, and tokens do not share scales."""
    torch.manual_seed(0)
    rows = torch.cat([torch.randn(5, 12) * 100, torch.randn(5, 4) * 0.01], dim=-1)
    rows[3] *= 1000
    encoded = encode_latents(rows, 12)
    decoded = decode_latents(encoded, 12, torch.float32)
    for part in (slice(0, 12), slice(12, 16)):
        step = rows[:, part].abs().amax(dim=-1, keepdim=True) / 127
        assert ((decoded[:, part] - rows[:, part]).abs() <= step * 0.5001).all()
    assert encoded.codes.dtype == torch.int8
    assert encoded.scales.shape == (5, 2)


def test_a_state_gone_bad_stays_bad_and_alone() -> None:
    """NaN or infinity in one head's state is not hidden by a codec, and does not reach its neighbours."""
    for bad in (torch.nan, torch.inf):
        state = states()
        expected = [codec(state) for codec in ROUND_TRIPS]
        state[1, 2, 3, 4] = bad
        for codec, whole in zip(ROUND_TRIPS, expected, strict=True):
            found = codec(state)
            assert not found[1, 2].isfinite().all()
            assert torch.equal(found[0], whole[0])
            assert torch.equal(found[1, :2], whole[1, :2])
