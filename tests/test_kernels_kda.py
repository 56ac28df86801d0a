"""Kimi Delta Attention: chunk form, decode step and gates against the recurrence as the paper states it."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from evalgate.kernels.kda_decode import kda_decode, reference_kda_decode
from evalgate.kernels.kda_gate import kda_gate, l2norm, reference_kda_gate
from evalgate.kernels.kda_prefill import chunk_kda, reference_kda

EXACT = 1e-12
"""Two orders of summation in float64, values of size 1."""
ROUNDING = 2e-5
"""float32 against float64 over hundreds of tokens, values of size 1."""


class Inputs(NamedTuple):
    """Arguments of the kernels, in order."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    state: Tensor

    def at(self, tokens: slice) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """A stretch, without the state."""
        return self.q[:, tokens], self.k[:, tokens], self.v[:, tokens], self.g[:, tokens], self.beta[:, tokens]

    def to(self, dtype: torch.dtype) -> Inputs:
        """The same numbers in another precision."""
        return Inputs(*(x.to(dtype) for x in self))


def make(length: int, decay: tuple[float, float] = (1e-4, 1.0), *, batch: int = 2, width: int = 16) -> Inputs:
    """Random inputs whose decay per step spreads evenly over the decades of ``decay``."""
    torch.manual_seed(length)
    heads, values = 2, width + 4
    shape = (batch, length, heads, width)
    low, high = (math.log(x) for x in decay)
    return Inputs(
        l2norm(torch.randn(shape, dtype=torch.float64)) * width**-0.5,
        l2norm(torch.randn(shape, dtype=torch.float64)),
        torch.randn(*shape[:3], values, dtype=torch.float64),
        -torch.empty(shape, dtype=torch.float64).uniform_(low, high).exp(),
        torch.rand(shape[:3], dtype=torch.float64),
        torch.randn(batch, heads, width, values, dtype=torch.float64),
    )


@pytest.mark.parametrize("decay", [(1e-4, 1e-3), (1e-2, 1.0), (1.0, 40.0), (1e-4, 40.0)], ids=str)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 130])
def test_chunk_form_is_the_recurrence(length: int, decay: tuple[float, float]) -> None:
    """In float64 both give one answer, at every length around sub-block and chunk borders and every decay."""
    x = make(length, decay)
    expected = reference_kda(*x)
    found = chunk_kda(*x)
    torch.testing.assert_close(found.output, expected.output, atol=EXACT, rtol=0)
    torch.testing.assert_close(found.final_state, expected.final_state, atol=EXACT, rtol=0)


def test_no_tokens_leave_the_state() -> None:
    """An empty stretch gives no output and the state that it was given."""
    x = make(64)
    result = chunk_kda(*x.at(slice(0, 0)), x.state, snapshot_at=(0,))
    assert result.output.shape == (2, 0, 2, 20)
    assert torch.equal(result.final_state, x.state)
    assert torch.equal(result.snapshots[0], x.state)


@pytest.mark.parametrize("step", [-1e-4, -0.05, -1.0, -5.9, -20.0, -40.0])
def test_any_gate_stays_finite_in_float32(step: float) -> None:
    """Every gate from -1e-4 to -40 at every step: finite, and right to float32 rounding."""
    x = make(300)._replace(g=torch.full((2, 300, 2, 16), step, dtype=torch.float64))
    expected = reference_kda(*x)
    found = chunk_kda(*x.to(torch.float32))
    assert found.output.isfinite().all()
    torch.testing.assert_close(found.output.double(), expected.output, atol=ROUNDING, rtol=0)
    torch.testing.assert_close(found.final_state.double(), expected.final_state, atol=ROUNDING, rtol=0)


def test_one_strong_gate_inside_weak_ones_forgets_exactly_there() -> None:
    """A reset in the middle of a sub-block: what came before is gone, what comes after is as without it."""
    x = make(64, (1e-4, 1e-3))
    x.g[:, 20] = -200.0
    found = chunk_kda(*x.to(torch.float32))
    fresh = chunk_kda(*x.to(torch.float32).at(slice(20, 64)), torch.zeros_like(x.state).float())
    torch.testing.assert_close(found.output[:, 20:], fresh.output, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("chunk", [64, 128, 256])
def test_cut_on_the_grid_is_bitwise_the_whole(chunk: int) -> None:
    """float32: outputs and states of pieces are those of one call, bit by bit, however it is cut on the grid."""
    x = make(515, width=32).to(torch.float32)
    whole = chunk_kda(*x, snapshot_at=range(0, 515, 64))
    state, outputs = x.state, []
    for start in range(0, 515, chunk):
        piece = chunk_kda(*x.at(slice(start, start + chunk)), state)
        outputs.append(piece.output)
        state = piece.final_state
        end = start + chunk
        assert end > 515 or torch.equal(state, whole.snapshots[end]), f"state at {end}"
    assert torch.equal(torch.cat(outputs, dim=1), whole.output)
    assert torch.equal(state, whole.final_state)


@pytest.mark.parametrize("at", [0, 64, 448, 512])
def test_restored_on_the_grid_is_bitwise_the_whole(at: int) -> None:
    """float32: going on from a snapshot gives what the uninterrupted call gave."""
    x = make(515, width=32).to(torch.float32)
    whole = chunk_kda(*x, snapshot_at=(at,))
    rest = chunk_kda(*x.at(slice(at, None)), whole.snapshots[at])
    assert torch.equal(rest.output, whole.output[:, at:])
    assert torch.equal(rest.final_state, whole.final_state)


def test_rows_of_a_batch_are_bitwise_those_rows_alone() -> None:
    """float32: no row of a batch depends on its neighbours."""
    x = make(200, batch=3, width=32).to(torch.float32)
    together = chunk_kda(*x)
    for row in range(3):
        alone = chunk_kda(*(t[row : row + 1] for t in x))
        assert torch.equal(alone.output[0], together.output[row])
        assert torch.equal(alone.final_state[0], together.final_state[row])


def test_snapshots_off_the_grid_are_refused() -> None:
    """A snapshot where no chunk ends, or past the end, is an error and not a neighbouring state."""
    x = make(100)
    for at in (1, 63, 100, 128, -64):
        with pytest.raises(ValueError, match="multiples of 64"):
            chunk_kda(*x, snapshot_at=(at,))


def test_at_grid_replaces_the_state_from_there_on() -> None:
    """What ``at_grid`` returns after a whole chunk is what the next chunk starts from; a ragged end is left alone."""
    x = make(150)
    seen: list[int] = []

    def halve(tokens: int, state: Tensor) -> Tensor:
        seen.append(tokens)
        return state / 2

    found = chunk_kda(*x, at_grid=halve)
    state = x.state
    for start in (0, 64, 128):
        piece = reference_kda(*x.at(slice(start, min(start + 64, 150))), state)
        state = piece.final_state / 2 if start < 128 else piece.final_state
    assert seen == [64, 128]
    torch.testing.assert_close(found.final_state, state, atol=EXACT, rtol=0)


def test_chunk_form_has_the_gradients_of_the_recurrence() -> None:
    """Training through the chunk form trains the recurrence."""
    x = Inputs(*(t.requires_grad_() for t in make(70, (1e-2, 2.0))))
    expected = torch.autograd.grad(reference_kda(*x).output.square().sum(), x)
    found = torch.autograd.grad(chunk_kda(*x).output.square().sum(), x)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def test_decode_steps_are_the_recurrence_and_touch_no_other_slot() -> None:
    """Steps on slots of a pool, in any order, equal the reference; the other slots stay as they are."""
    x = make(5, batch=3)
    pool = torch.randn(6, 2, 16, 20, dtype=torch.float64)
    slots = torch.tensor([4, 1, 5])
    expected_pool, before = pool.clone(), pool.clone()
    for t in range(5):
        step = (x.q[:, t], x.k[:, t], x.v[:, t], x.g[:, t], x.beta[:, t])
        expected = reference_kda_decode(*step, expected_pool, slots)
        torch.testing.assert_close(kda_decode(*step, pool, slots), expected, atol=EXACT, rtol=0)
    torch.testing.assert_close(pool, expected_pool, atol=EXACT, rtol=0)
    for slot in (0, 2, 3):
        assert torch.equal(pool[slot], before[slot])


def test_gate_is_the_equation_and_never_positive() -> None:
    """Log decays match the equation in float64 and stay finite and non-positive for any input in float32."""
    f = torch.randn(3, 7, 2, 8, dtype=torch.float64) * 3
    a_log, dt_bias = torch.randn(2, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
    torch.testing.assert_close(kda_gate(f, a_log, dt_bias), reference_kda_gate(f, a_log, dt_bias))
    extreme = kda_gate(torch.tensor([[-1e4], [-90.0], [0.0], [90.0], [1e4]]), torch.zeros(1), torch.zeros(1, 1))
    assert extreme.isfinite().all()
    assert (extreme <= 0).all()
    assert extreme[-1].item() == pytest.approx(-1e4)


def test_l2norm_of_zero_is_zero() -> None:
    """A key of zeros writes nothing instead of NaN."""
    assert torch.equal(l2norm(torch.zeros(2, 8)), torch.zeros(2, 8))
    assert l2norm(torch.ones(1, 4)).square().sum().item() == pytest.approx(1.0, abs=1e-5)
