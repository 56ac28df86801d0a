"""Short convolution, norms and experts against their equations."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from evalgate.kernels.moe import Experts, Router, grouped_moe, moe, reference_moe, route
from evalgate.kernels.rms_norm import gated_rms_norm, reference_rms_norm, rms_norm
from evalgate.kernels.short_conv import reference_short_conv, short_conv

BF16 = 2e-2
"""Two roundings to 8 bits of products of some dozen terms of size 1, of which the largest counts."""
EXACT = 1e-12
"""Two orders of summation in float64, values of size 1."""


@pytest.mark.parametrize("cuts", [[], [1], [2], [3], [1, 2, 3, 4], [5, 6], [9]], ids=str)
def test_convolution_may_be_cut_anywhere(cuts: list[int]) -> None:
    """Pieces of any length, shorter than the filter too, equal the token-by-token form, output and state."""
    torch.manual_seed(0)
    x, taps = torch.randn(2, 10, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    start = torch.randn(2, 3, 6, dtype=torch.float64)
    expected = reference_short_conv(x, taps, start)
    state, outputs, edges = start, [], [0, *cuts, 10]
    for a, b in pairwise(edges):
        piece = short_conv(x[:, a:b], taps, state)
        outputs.append(piece.output)
        state = piece.state
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected.output, atol=EXACT, rtol=0)
    assert torch.equal(state, expected.state)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
def test_padding_leaves_no_trace_in_the_convolution_state(length: int) -> None:
    """The state of a padded row is that of its real tokens, even where the padding is NaN."""
    torch.manual_seed(0)
    x, taps, state = torch.randn(2, 7, 6), torch.randn(4, 6), torch.randn(2, 3, 6)
    alone = short_conv(x[1:, :length], taps, state[1:])
    x[1, length:] = torch.nan
    padded = short_conv(x, taps, state, torch.tensor([7, length]))
    assert torch.equal(padded.state[1], alone.state[0])
    torch.testing.assert_close(padded.output[1, :length], alone.output[0])
    assert torch.equal(padded.state[0], short_conv(x[:1], taps, state[:1]).state[0])


def test_convolution_in_bfloat16_sums_in_float32() -> None:
    """Nothing is rounded on the way, and the state keeps the dtype of the inputs."""
    torch.manual_seed(0)
    x, taps, state = (torch.randn(s).bfloat16() for s in ((1, 50, 8), (4, 8), (1, 3, 8)))
    wide = short_conv(x.float(), taps.float(), state.float())
    narrow = short_conv(x, taps, state)
    assert torch.equal(narrow.output, wide.output)
    assert torch.equal(narrow.state, x[:, -3:])


def test_norms_are_the_equations() -> None:
    """Plain and gated, in float64; and a bfloat16 input is normalised in float32."""
    torch.manual_seed(0)
    x, gate, weight = (torch.randn(s, dtype=torch.float64) for s in ((3, 5, 8), (3, 5, 8), (8,)))
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), reference_rms_norm(x, weight, 1e-5))
    torch.testing.assert_close(gated_rms_norm(x, gate, weight, 1e-5), reference_rms_norm(x, weight, 1e-5, gate=gate))
    narrow = rms_norm(x.bfloat16(), torch.ones(8, dtype=torch.bfloat16), 1e-5)
    assert torch.equal(narrow, rms_norm(x.bfloat16().float(), torch.ones(8), 1e-5).bfloat16())


def make_router(groups: int, top_groups: int, *, bias: torch.Tensor | None = None) -> Router:
    """Eight experts, two for each token."""
    weight = torch.randn(8, 6, dtype=torch.float64)
    return Router(weight, torch.zeros(8) if bias is None else bias, 2, groups, top_groups, True, 2.5)


@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (4, 2), (2, 1)])
def test_experts_in_runs_are_experts_token_by_token(groups: int, top_groups: int) -> None:
    """Sorting tokens by expert changes nothing but the order of sums."""
    torch.manual_seed(0)
    router = make_router(groups, top_groups)
    experts = Experts(torch.randn(8, 10, 6, dtype=torch.float64), torch.randn(8, 6, 5, dtype=torch.float64))
    x = torch.randn(33, 6, dtype=torch.float64)
    torch.testing.assert_close(moe(x, router, experts), reference_moe(x, router, experts), atol=EXACT, rtol=1e-12)


def test_experts_in_grouped_products_are_the_same_experts() -> None:
    """All at once in bfloat16, also where an expert has no token."""
    torch.manual_seed(0)
    router = make_router(4, 2, bias=torch.tensor([0.0, 0.0, -9.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    experts = Experts(torch.randn(8, 16, 8).bfloat16(), torch.randn(8, 8, 8).bfloat16())
    router = router._replace(weight=torch.randn(8, 8))
    x = torch.randn(33, 8).bfloat16()
    assert 2 not in route(x, router).experts
    expected = reference_moe(x, router, experts)
    torch.testing.assert_close(grouped_moe(x, router, experts), expected, atol=BF16, rtol=BF16)


def test_router_stays_in_the_best_groups_and_weights_ignore_the_bias() -> None:
    """A large bias decides who is chosen, not how much they count; experts outside the best group are barred."""
    torch.manual_seed(0)
    bias = torch.tensor([0, 0, 0, 0, 9.0, 0, 0, 9.0], dtype=torch.float64)
    router = make_router(2, 1, bias=bias)
    x = torch.randn(20, 6, dtype=torch.float64)
    choice = route(x, router)
    assert sorted(set(choice.experts.flatten().tolist())) == [4, 7]
    scores = (x @ router.weight.T).sigmoid().gather(1, choice.experts)
    expected = scores / scores.sum(dim=-1, keepdim=True) * 2.5
    torch.testing.assert_close(choice.weights, expected)
