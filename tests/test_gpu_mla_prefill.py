"""Latent attention of packed queries over pages on the GPU, under Triton's interpreter, against float64."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from evalgate.engine.visibility import Visibility
from evalgate.kernels.gpu import mla_prefill as module
from evalgate.kernels.gpu.latent_gather import gathered
from evalgate.kernels.gpu.mla_prefill import UNLIMITED, Stretches, mla_prefill
from evalgate.kernels.gpu.paged_latents import Stored
from evalgate.kernels.latent_codec import Fp8Latents, Int8Latents
from evalgate.kernels.lse_merge import Part

TIGHT = 1e-5
"""float32 products and sums of expanded keys and values of size 2 over some hundred latents."""
ROUNDED = 5e-2
"""bfloat16 keys, values, weights and results of size up to 4: a few times 2^-8 of that."""
HEADS, NOPE, SIDE, VALUE, LATENT = 2, 32, 16, 32, 64
SCALE = 0.3


class Case(NamedTuple):
    """A pool of pages, and queries over it."""

    q: Tensor
    latents: Tensor
    table: Tensor
    expand: Tensor
    page: int
    offsets: list[int]
    starts: list[int]


def case(stretches: list[tuple[int, int]], *, page: int = 16, shared: int = 0, spare: int = 0) -> Case:
    """Runs of (start, queries); the pool is NaN where no run has a latent, and pages lie in any order.

    The pages of the first ``shared`` positions are those of the first run; ``spare`` queries are in no run.
    """
    generator = torch.Generator().manual_seed(len(stretches) + page)
    ends = [start + count for start, count in stretches]
    needed = [-(-end // page) for end in ends]
    order = torch.randperm(sum(needed) + 1, generator=generator).add(1).tolist()
    latents = torch.full(((len(order) + 1) * page, LATENT + SIDE), torch.nan)
    table = torch.full((len(stretches), max(*needed, 1)), -1, dtype=torch.int64)
    for row, pages in enumerate(needed):
        table[row, :pages] = torch.tensor([order.pop() for _ in range(pages)], dtype=torch.int64)
        table[row, : shared // page] = table[0, : shared // page]
        own = latents[rows_of(table[row], ends[row], page)]
        fresh = torch.randn(own.shape, generator=generator)
        latents[rows_of(table[row], ends[row], page)] = torch.where(own.isnan(), fresh, own)
    offsets = [0]
    for _, count in stretches:
        offsets.append(offsets[-1] + count)
    q = torch.randn(offsets[-1] + spare, HEADS, NOPE + SIDE, generator=generator)
    expand = torch.randn(HEADS, NOPE + VALUE, LATENT, generator=generator) / 8
    return Case(q, latents, table, expand, page, offsets, [start for start, _ in stretches])


def rows_of(pages: Tensor, count: int, page: int) -> Tensor:
    """Pool rows of the first positions."""
    position = torch.arange(count)
    return pages[position // page] * page + position % page


def run(
    given: Case,
    *,
    sights: list[Visibility] | None = None,
    scales: Tensor | None = None,
    shared: int = 0,
    tile: int = 64,
    lowest: int = 0,
) -> Part:
    """The kernels over a case, in tiles."""
    counts = [b - a for a, b in zip(given.offsets, given.offsets[1:], strict=False)]
    rules = None if sights is None else torch.tensor([rule(sight) for sight in sights])
    keys = range(lowest, max(start + count for start, count in zip(given.starts, counts, strict=True)))
    offsets, starts = torch.tensor(given.offsets), torch.tensor(given.starts)
    runs = Stretches(offsets, starts, max(counts), keys, rules)
    return mla_prefill(
        given.q,
        given.latents,
        given.table,
        given.expand,
        runs,
        scale=SCALE,
        page=given.page,
        scales=scales,
        shared=shared,
        tile=tile,
    )


def rule(sight: Visibility) -> list[int]:
    """What a run's queries see, as four numbers."""
    hole = sight.hole or range(0)
    window = UNLIMITED if sight.window is None else sight.window
    end = UNLIMITED if sight.context_end is None else sight.context_end
    return [window, end, hole.start, hole.stop]


def expected(given: Case, sights: list[Visibility] | None = None, latents: Tensor | None = None) -> Part:
    """Every key expanded, every score written out, in float64."""
    pool = (given.latents if latents is None else latents).double()
    outputs = torch.zeros(len(given.q), HEADS, VALUE, dtype=torch.float64)
    sums = torch.full((len(given.q), HEADS), -torch.inf, dtype=torch.float64)
    for row, start in enumerate(given.starts):
        where = slice(given.offsets[row], given.offsets[row + 1])
        q = given.q[where].double()
        queries = range(start, start + len(q))
        keys = range(queries.stop)
        held = pool[rows_of(given.table[row], queries.stop, given.page)]
        expanded = torch.einsum("hnl,sl->hsn", given.expand.double(), held[:, :LATENT])
        sides = held[None, :, LATENT:].expand(HEADS, -1, -1)
        scores = q.transpose(0, 1) @ torch.cat([expanded[..., :NOPE], sides], dim=-1).mT * SCALE
        visible = (sights[row] if sights else Visibility()).mask(queries, keys)
        if visible is None:
            visible = torch.arange(len(keys)) <= torch.arange(queries.start, queries.stop)[:, None]
        scores = scores.masked_fill(~visible, -torch.inf)
        outputs[where] = (scores.softmax(dim=-1) @ expanded[..., NOPE:]).transpose(0, 1)
        sums[where] = scores.logsumexp(dim=-1).T
    return Part(outputs, sums)


def close(found: Part, want: Part, tolerance: float = TIGHT) -> None:
    """Means by size, log sums by size and relative size."""
    torch.testing.assert_close(found.output.double(), want.output, atol=tolerance, rtol=0)
    torch.testing.assert_close(found.lse.double(), want.lse, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("page", [16, 64])
def test_runs_of_any_length_at_any_position(page: int) -> None:
    """Lengths and positions around pages, blocks and tiles, some runs empty; queries of no run get nothing."""
    given = case([(0, 17), (5, 0), (63, 1), (1, 65)], page=page, spare=3)
    found = run(given)
    close(found, expected(given))
    assert not found.output[-3:].any()


@pytest.mark.parametrize("tile", [48, 4096])
def test_tiles_of_any_size_make_the_same_attention(tile: int) -> None:
    """Parts are joined exactly, wherever the past is cut."""
    given = case([(60, 20), (37, 5)])
    close(run(given, tile=tile), expected(given))


@pytest.mark.parametrize("shared", [64, 96])
def test_runs_of_a_group_expand_their_past_once(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that all runs share are gathered for one, and every run attends to them."""
    seen = []

    def counted(held: Stored, table: Tensor, keys: range, *rest: object) -> Tensor:
        seen.append((len(table), keys))
        return gathered(held, table, keys, *rest)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(module, "gathered", counted)
    given = case([(96, 9), (100, 20), (110, 1)], shared=96)
    close(run(given, shared=shared), expected(given))
    assert all(tables == (1 if keys.stop <= shared else 3) for tables, keys in seen)
    assert seen[0][1] == range(64)


SIGHTS = [
    Visibility(window=1),
    Visibility(window=20),
    Visibility(window=33, context_end=100),
    Visibility(context_end=104, hole=range(30, 75)),
    Visibility(context_end=60, hole=range(59)),
    Visibility(window=1000),
]


@pytest.mark.parametrize("tile", [64, 4096])
def test_windows_and_holes(tile: int) -> None:
    """Runs with rules of their own see what the engine's masks say, also where a run starts inside the context."""
    given = case([(90, 5), (40, 33), (95, 20), (90, 40), (70, 4), (0, 20)])
    close(run(given, sights=SIGHTS, tile=tile), expected(given, SIGHTS))


def test_what_a_window_let_go_is_not_read() -> None:
    """Pages before the floor may be scratch, -1 or another's; only keys from the lowest floor on are taken."""
    sights = [Visibility(window=30)] * 2
    given = case([(100, 9), (120, 16)])
    want = expected(given, sights)
    given.table[0, :4], given.table[1, :5] = 0, -1
    close(run(given, sights=sights, lowest=71), want)


def test_large_scores_keep_their_differences() -> None:
    """Scores in the thousands, and one that outweighs all: the largest is what is taken off, over tiles too."""
    given = case([(90, 9)])
    given = given._replace(q=given.q.mul(64).round().mul(4), expand=given.expand.mul(64).round().div(64))
    given = given._replace(latents=given.latents.mul(16).round().div(16))
    want = expected(given)
    assert want.lse.abs().max() > 1e3
    # Products of few bits are exact in float32; the log sum of a tile is rounded to its last place, 2^-12 here.
    close(run(given), want, tolerance=2e-3)


def test_a_later_token_changes_nothing_before_it() -> None:
    """Suffix perturbation, bit for bit, with the change in the same block and in a later one."""
    given = case([(40, 35)])
    base = run(given)
    for at in (41, 63, 74):
        changed = given.latents.clone()
        changed[rows_of(given.table[0], 75, given.page)[at:]] = 3.0
        found = run(given._replace(latents=changed))
        assert torch.equal(found.output[: at - 40], base.output[: at - 40])
        assert not torch.equal(found.output[at - 40 :], base.output[at - 40 :])


def test_a_run_does_not_depend_on_its_batch() -> None:
    """Packed with others or alone: the same up to what an order of sums makes, within the named tolerance."""
    given = case([(20, 33), (0, 5), (50, 2)])
    together = run(given)
    for row in range(3):
        where = slice(given.offsets[row], given.offsets[row + 1])
        alone = given._replace(
            q=given.q[where],
            table=given.table[row : row + 1],
            offsets=[0, where.stop - where.start],
            starts=[given.starts[row]],
        )
        torch.testing.assert_close(run(alone).output, together.output[where], atol=TIGHT, rtol=0)


@pytest.mark.parametrize("codec", [Int8Latents, Fp8Latents])
def test_codes_of_very_unequal_scales(codec: type[Int8Latents | Fp8Latents]) -> None:
    """The side part 1e5 times the latent one: each is decoded by its own scale."""
    given = case([(40, 20), (3, 9)])
    plain = given.latents.nan_to_num(0.0)
    plain[:, LATENT:] *= 1e5
    given.q[..., NOPE:] *= 1e-5
    form = codec(LATENT, SIDE, torch.float32)
    codes, scales = form.encode(plain)
    want = expected(given, latents=form.decode((codes.clone(), scales)))
    close(run(given._replace(latents=codes), scales=scales), want)


def test_int32_tables_and_views() -> None:
    """A layer's view of a pool and queries cut from a wider tensor."""
    given = case([(33, 20)])
    layers = torch.full((2, *given.latents.shape), torch.nan)
    layers[1] = given.latents
    wide = torch.full((20, HEADS + 1, 64), torch.nan)
    wide[:, 1:, 3 : 3 + NOPE + SIDE] = given.q
    view = given._replace(latents=layers[1], table=given.table.int(), q=wide[:, 1:, 3 : 3 + NOPE + SIDE])
    close(run(view), expected(given))


def test_widths_that_fill_no_block() -> None:
    """Heads of 24 + 8 and values of 20: what pads them is never read."""
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(21, 2, 32, generator=generator)
    expand, latents = torch.randn(2, 44, 30, generator=generator) / 5, torch.randn(64, 38, generator=generator)
    runs = Stretches(torch.tensor([0, 21]), torch.tensor([9]), 21, range(30))
    found = mla_prefill(q, latents, torch.tensor([[2, 1]]), expand, runs, scale=SCALE, page=16)
    held = latents[rows_of(torch.tensor([2, 1]), 30, 16)].double()
    expanded = torch.einsum("hnl,sl->hsn", expand.double(), held[:, :30])
    keys = torch.cat([expanded[..., :24], held[None, :, 30:].expand(2, -1, -1)], dim=-1)
    scores = q.double().transpose(0, 1) @ keys.mT * SCALE
    scores = scores.masked_fill(torch.ones(21, 30).triu(10).bool(), -torch.inf)
    want = (scores.softmax(dim=-1) @ expanded[..., 24:]).transpose(0, 1)
    torch.testing.assert_close(found.output.double(), want, atol=TIGHT, rtol=0)


def test_bfloat16_rounds_what_it_must() -> None:
    """Keys and values are rounded as they are expanded, weights and results once."""
    given = case([(50, 130)])
    given = given._replace(q=given.q.bfloat16(), latents=given.latents.bfloat16(), expand=given.expand.bfloat16())
    found = run(given)
    assert found.output.dtype == torch.bfloat16
    close(found, expected(given), tolerance=ROUNDED)


def test_nothing_to_do() -> None:
    """No queries at all."""
    given = case([(5, 0)])
    assert run(given).output.shape == (0, HEADS, VALUE)
