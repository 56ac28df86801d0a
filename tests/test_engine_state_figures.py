"""Figures of states whose answers are known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evalgate.engine.state_figures import effective_rank, half_lives, halvings, saturation, stretch_effect
from evalgate.kernels.kda_prefill import reference_kda


def test_one_token_halves_a_channel_at_most_once() -> None:
    """A channel that is wiped every tenth token has a half-life of ten tokens, not of the wipe's depth."""
    wiped, steady = torch.zeros(100, 1), torch.full((100, 1), -math.log(2) / 50)
    wiped[::10] = -40.0
    rate = halvings(torch.cat([wiped, steady, torch.zeros(100, 1)], dim=1)).mean(dim=0)

    assert half_lives(rate) == [pytest.approx(10.0), pytest.approx(50.0), None]


def test_effective_rank_counts_directions() -> None:
    """Equal directions count one each, weak ones less, an empty state has none."""
    states = torch.stack(
        [torch.eye(8), torch.ones(8, 8), torch.zeros(8, 8), torch.diag(torch.tensor([1.0] * 4 + [0.0] * 4))]
    )
    weak = torch.diag(torch.tensor([0.75, 0.25]))

    assert effective_rank(states).tolist() == pytest.approx([8.0, 1.0, 0.0, 4.0])
    assert effective_rank(weak).item() == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))


def test_saturation_runs_from_adding_to_replacing() -> None:
    """All of it added, none of it, a state that shrinks, and nothing written."""
    before, after, written = (
        torch.tensor(row) for row in ([0.0, 3.0, 3.0, 3.0], [2.0, 3.0, 2.5, 3.0], [2.0, 2.0, 1.0, 0.0])
    )

    assert saturation(before, after, written) == [0.0, 1.0, 1.5, None]


@given(st.integers(1, 150), st.integers(0, 2**31))
def test_a_stretch_acts_on_any_state_as_told(tokens: int, seed: int) -> None:
    """Transition times a state plus what was written is the state of the recurrence; older content never grows."""
    draw = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    k = torch.nn.functional.normalize(random(1, tokens, 2, 8), dim=-1)
    v, g, beta = random(1, tokens, 2, 6), -random(1, tokens, 2, 8).exp(), random(1, tokens, 2).sigmoid()
    state = random(1, 2, 8, 6)
    transition, written = stretch_effect(k, v, g, beta)

    torch.testing.assert_close(transition @ state + written, reference_kda(k, k, v, g, beta, state).final_state)
    assert (transition @ state).norm() <= state.norm() + 1e-9
