"""Latent attention: tiles, merging and the absorbed decode step against attention written out in full."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from evalgate.kernels.lse_merge import Part, merge, reference_merge
from evalgate.kernels.mla_decode import mla_decode, reference_mla_decode
from evalgate.kernels.mla_prefill import KeyTile, MlaWeights, absorbing, mla_prefill, reference_mla

EXACT = 1e-12
"""Two orders of summation in float64, values of size 1."""
HEADS, NOPE, ROPE, LATENT, VALUE = 3, 8, 4, 12, 10


@pytest.fixture(params=[True, False], ids=["absorbed", "expanded"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the two forms that attention takes."""
    monkeypatch.setattr("evalgate.kernels.mla_prefill.absorbing", lambda _shape, _weights: request.param)


def weights(scale: float = 1.0) -> MlaWeights:
    """Random expansions of a latent."""
    torch.manual_seed(1)
    return MlaWeights(
        torch.randn(HEADS, NOPE, LATENT, dtype=torch.float64) * scale,
        torch.randn(HEADS, VALUE, LATENT, dtype=torch.float64),
    )


def queries(batch: int, length: int) -> Tensor:
    """Random queries ``[B, T, H, N + R]``."""
    return torch.randn(batch, length, HEADS, NOPE + ROPE, dtype=torch.float64)


def latents(*shape: int) -> Tensor:
    """Random cached rows ``[..., L + R]``."""
    return torch.randn(*shape, LATENT + ROPE, dtype=torch.float64)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("cuts", [[], [5], [64, 70], [1, 2, 3, 150]], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_tiles_that_all_rows_share_make_whole_attention(cuts: list[int], batch: int) -> None:
    """A shared past in any tiles, then each row's own causal stretch, equals attention over all of it."""
    w, past, own, q = weights(), latents(1, 160), latents(batch, 7), queries(batch, 7)
    edges = [0, *cuts, 160]
    tiles = [KeyTile(past[:, a:b]) for a, b in pairwise(edges)]
    found = mla_prefill(q, [*tiles, KeyTile(own, causal=True)], w, 0.3)
    every = torch.cat([past.expand(batch, -1, -1), own], dim=1)
    visible = torch.cat([torch.ones(7, 160), torch.ones(7, 7).tril()], dim=1).bool()
    torch.testing.assert_close(found, reference_mla(q, every, w, 0.3, visible), atol=EXACT, rtol=0)


@pytest.mark.usefixtures("form")
def test_tiles_of_each_row_make_whole_attention() -> None:
    """Rows with pasts of their own attend to those."""
    w, past, own, q = weights(), latents(2, 40), latents(2, 5), queries(2, 5)
    found = mla_prefill(q, [KeyTile(past), KeyTile(own, causal=True)], w, 0.3)
    visible = torch.cat([torch.ones(5, 40), torch.ones(5, 5).tril()], dim=1).bool()
    expected = reference_mla(q, torch.cat([past, own], dim=1), w, 0.3, visible)
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=0)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("batch", [1, 2])
def test_hidden_keys_count_nothing_even_where_a_query_sees_none_of_a_tile(batch: int) -> None:
    """Masks over shared tiles and the own stretch: hidden keys have no weight, a wholly hidden tile claims none."""
    w, past, own, q = weights(), latents(1, 32), latents(batch, 6), queries(batch, 6)
    seen = torch.rand(6, 32) < 0.5
    seen[2:4] = False
    own_seen = torch.ones(6, 6).tril().bool()
    own_seen[5, 1:3] = False
    found = mla_prefill(q, [KeyTile(past, seen), KeyTile(own, own_seen)], w, 0.3)
    every = torch.cat([past.expand(batch, -1, -1), own], dim=1)
    expected = reference_mla(q, every, w, 0.3, torch.cat([seen, own_seen], dim=1))
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=0)


@pytest.mark.usefixtures("form")
def test_scores_of_hundreds_neither_overflow_nor_lose_the_winner() -> None:
    """Scores far beyond what exp takes, over many tiles and in the decode step, still give the right mean."""
    w, past, own, q = weights(scale=60.0), latents(1, 96), latents(1, 4), queries(1, 4)
    tiles = [KeyTile(past[:, a : a + 16]) for a in range(0, 96, 16)]
    visible = torch.cat([torch.ones(4, 96), torch.ones(4, 4).tril()], dim=1).bool()
    every = torch.cat([past, own], dim=1)
    expected = reference_mla(q, every, w, 1.0, visible)
    found = mla_prefill(q, [*tiles, KeyTile(own, causal=True)], w, 1.0)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    step = mla_decode(q[:, -1], [every[0, 50:]], w, 1.0, shared=every[0, :50])
    torch.testing.assert_close(step, expected[:, -1], atol=1e-9, rtol=0)


@pytest.mark.usefixtures("form")
def test_values_wider_than_keys_attend_as_well() -> None:
    """The fused operation's single width is an implementation matter: either side may be the wider one."""
    torch.manual_seed(2)
    w = MlaWeights(
        torch.randn(2, 3, 6, dtype=torch.float64),
        torch.randn(2, 17, 6, dtype=torch.float64),
    )
    q, own = torch.randn(1, 5, 2, 5, dtype=torch.float64), torch.randn(1, 5, 8, dtype=torch.float64)
    expected = reference_mla(q, own, w, 0.5, torch.ones(5, 5).tril().bool())
    torch.testing.assert_close(mla_prefill(q, [KeyTile(own, causal=True)], w, 0.5), expected, atol=EXACT, rtol=0)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("batch", [1, 2])
def test_rows_may_see_different_keys(batch: int) -> None:
    """A mask for each row, over a shared tile and over the own stretch."""
    w, past, own, q = weights(), latents(1, 32), latents(batch, 6), queries(batch, 6)
    seen, own_seen = torch.rand(batch, 6, 32) < 0.5, torch.ones(6, 6).tril().bool().expand(batch, 6, 6).clone()
    own_seen[-1, 5, 1:3] = False
    found = mla_prefill(q, [KeyTile(past, seen), KeyTile(own, own_seen)], w, 0.3)
    for row in range(batch):
        every = torch.cat([past, own[row : row + 1]], dim=1)
        expected = reference_mla(q[row : row + 1], every, w, 0.3, torch.cat([seen[row], own_seen[row]], dim=1))
        torch.testing.assert_close(found[row : row + 1], expected, atol=EXACT, rtol=0)


def test_the_form_is_the_one_with_fewer_multiplications() -> None:
    """One query never pays for expanded keys; many do, but only where latents are wider than heads."""
    wide = MlaWeights(torch.empty(4, 32, 64), torch.empty(4, 32, 64))
    assert absorbing((1, 1, 4, 48), wide)
    assert absorbing((2, 31, 4, 48), wide)
    assert not absorbing((2, 32, 4, 48), wide)
    narrow = MlaWeights(torch.empty(4, 128, 128), torch.empty(4, 128, 128))
    assert absorbing((1, 10**6, 4, 192), narrow)


@pytest.mark.parametrize("shared", [0, 1, 30])
def test_decode_over_rows_of_unequal_length(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row sees its own latents and the shared ones, in tiles or not, and nothing of its neighbours."""
    monkeypatch.setattr("evalgate.kernels.mla_decode.TILE", 16)
    w, prefix, q = weights(), latents(shared), queries(4, 1)[:, 0]
    rows = [latents(n) for n in (1, 2, 63, 65)]
    expected = reference_mla_decode(q, [torch.cat([prefix, row]) for row in rows], w, 0.3)
    found = mla_decode(q, rows, w, 0.3, shared=prefix if shared else None)
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=0)


def test_merge_is_the_weighted_mean() -> None:
    """Merging equals the sum written out, for scores that can be exponentiated as they are."""
    torch.manual_seed(3)
    parts = [Part(torch.randn(2, 5, 7, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)) for _ in range(4)]
    found, expected = merge(parts), reference_merge(parts)
    torch.testing.assert_close(found.output, expected.output, atol=EXACT, rtol=0)
    torch.testing.assert_close(found.lse, expected.lse, atol=EXACT, rtol=0)


def test_merge_ignores_what_empty_parts_hold() -> None:
    """A part that saw no key may hold anything, NaN included; no part at all gives 0 and -inf, not NaN."""
    full = Part(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5000.0, -5000.0]))
    empty = Part(torch.full((2, 2), torch.nan), torch.full((2,), -torch.inf))
    found = merge([empty, full, empty])
    assert torch.equal(found.output, full.output)
    assert torch.equal(found.lse, full.lse)
    nothing = merge([empty, empty])
    assert torch.equal(nothing.output, torch.zeros(2, 2))
    assert (nothing.lse == -torch.inf).all()


def test_merge_with_unequal_sizes_keeps_order_of_rows() -> None:
    """A log sum belongs to its own row and head: swapping two parts' rows would be seen."""
    a = Part(torch.tensor([[1.0], [10.0]]), torch.tensor([0.0, 100.0]))
    b = Part(torch.tensor([[2.0], [20.0]]), torch.tensor([100.0, 0.0]))
    assert merge([a, b]).output.flatten().tolist() == [2.0, 10.0]
