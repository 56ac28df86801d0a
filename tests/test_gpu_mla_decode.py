"""Absorbed latent attention over pages on the GPU, under Triton's interpreter, against attention in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import triton.language as tl
from torch import Tensor

from evalgate.kernels.gpu import mla_decode as module
from evalgate.kernels.gpu.mla_decode import Shared, mla_decode
from evalgate.kernels.latent_codec import Fp8Latents, Int8Latents
from evalgate.kernels.lse_merge import Part

TIGHT = 5e-6
"""float32 products and sums over some hundred latents of size 1."""
ROUNDED = 2e-2
"""bfloat16 weights, and a result of size 1 or 2 in bfloat16: half of 2^-7, each."""
LARGE = 1e-3
"""Half a unit in the last place of a float32 of size 10,000, with room for a second split's."""
LATENT, SIDE = 32, 16


SHORTEST = 64
"""Positions of a split, so that short rows have several: the interpreter takes milliseconds for each block."""


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of 64 positions in every test."""
    monkeypatch.setattr(module, "SHORTEST", SHORTEST)
    monkeypatch.setattr(module, "_SHORTEST", tl.constexpr(SHORTEST))


@dataclass(frozen=True)
class Cache:
    """A pool, and what of it rows see."""

    latents: Tensor
    table: Tensor
    first: Tensor
    count: Tensor
    page: int


def cache(counts: list[int], *, page: int = 16, firsts: list[int] | None = None, width: int = LATENT + SIDE) -> Cache:
    """Random latents in scattered pages of a pool whose other rows are all NaN; no page is used twice."""
    generator = torch.Generator().manual_seed(sum(counts) + page)
    first = torch.tensor(firsts or [0] * len(counts))
    count = torch.tensor(counts)
    needed = [-(-(f + n) // page) for f, n in zip(first.tolist(), counts, strict=True)]
    order = torch.randperm(sum(needed) + 1, generator=generator).add(1).tolist()
    pool = torch.full(((len(order) + 1) * page, width), torch.nan)
    table = torch.zeros(len(counts), max(*needed, 1), dtype=torch.int64)
    for row, pages in enumerate(needed):
        table[row, :pages] = torch.tensor([order.pop() for _ in range(pages)], dtype=torch.int64)
        where = rows_of(table[row], int(first[row]), counts[row], page)
        pool[where] = torch.randn(counts[row], width, generator=generator)
    return Cache(pool, table, first, count, page)


def rows_of(pages: Tensor, first: int, count: int, page: int) -> Tensor:
    """Pool rows of positions."""
    position = torch.arange(first, first + count)
    return pages[position // page] * page + position % page


def queries(batch: int, heads: int = 3, width: int = LATENT + SIDE) -> Tensor:
    """Random absorbed queries."""
    return torch.randn(batch, heads, width, generator=torch.Generator().manual_seed(11))


def expected(q: Tensor, seen: list[Tensor], scale: float, latent: int = LATENT) -> Part:
    """Attention of each row over its latents ``[S, L + R]``, in float64."""
    outputs, sums = [], []
    for row, latents in zip(q.double(), seen, strict=True):
        scores = row @ latents.double().T * scale
        outputs.append(scores.softmax(dim=-1).nan_to_num() @ latents[:, :latent].double())
        sums.append(scores.logsumexp(dim=-1))
    return Part(torch.stack(outputs), torch.stack(sums))


def own(held: Cache, latents: Tensor | None = None) -> list[Tensor]:
    """What each row sees."""
    pool = held.latents if latents is None else latents
    table = zip(held.table, held.first.tolist(), held.count.tolist(), strict=True)
    return [pool[rows_of(pages, first, count, held.page)] for pages, first, count in table]


def run(q: Tensor, held: Cache, scale: float = 0.3, latent: int = LATENT, shared: Shared | None = None) -> Part:
    """The kernel over a cache."""
    return mla_decode(
        q,
        held.latents,
        held.table,
        held.first,
        held.count,
        scale=scale,
        latent_width=latent,
        page=held.page,
        shared=shared,
    )


def close(found: Part, want: Part, tolerance: float = TIGHT) -> None:
    """Means by size, log sums by size and relative size."""
    torch.testing.assert_close(found.output.double(), want.output, atol=tolerance, rtol=0)
    torch.testing.assert_close(found.lse.double(), want.lse, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("page", [16, 64])
def test_rows_of_any_length_see_their_pages(page: int) -> None:
    """Lengths around pages, blocks and splits, one of them 0, in pages in any order; all else in the pool is NaN."""
    held = cache([0, 1, 15, 17, 64, 65, 130], page=page)
    q = queries(7)
    found = run(q, held)
    close(found, expected(q, own(held), 0.3))
    assert not found.output[0].any()
    assert (found.lse[0] == -torch.inf).all()


@pytest.mark.parametrize("page", [16, 64])
def test_what_lies_before_the_first_position_is_not_read(page: int) -> None:
    """A window may start anywhere, and pages that it let go are scratch or -1."""
    firsts = [1, 15, 70, 200]
    held = cache([40, 2, 61, 130], page=page, firsts=firsts)
    for row, first in enumerate(firsts):
        held.table[row, : first // page] = 0 if row % 2 else -1
    q = queries(4)
    close(run(q, held), expected(q, own(held), 0.3))


@pytest.mark.parametrize("page", [16, 64])
def test_a_page_of_minus_1_is_seen_by_no_one(page: int) -> None:
    """It is masked, neither clamped to page 0 nor wrapped to the last one; a row of nothing else sees nothing."""
    held = cache([2 * page + 40, 50], page=page)
    held.table[0, 1], held.table[1] = -1, -1
    held.latents[:page] = 1.0  # a number, so that page 0 would not show by its NaN alone
    seen = own(held)
    seen[0] = torch.cat([seen[0][:page], seen[0][2 * page :]])
    q = queries(2)
    found = run(q, held)
    close(found, expected(q, [seen[0], seen[1][:0]], 0.3))


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_scores_keep_their_differences(size: float) -> None:
    """Scores of 10,000 that differ by less than 2: exact in float32, lost where they are rescaled first."""
    held = cache([40, 150])
    held.latents[:, LATENT] = size
    held.latents[:, :LATENT] = held.latents[:, :LATENT].mul(4).round().div(4)
    held.latents[:, LATENT + 1 :] = 0
    q = queries(2).sign()
    q[..., LATENT] = 1.0
    q[..., 1:LATENT] = 0
    found, want = run(q, held, scale=1.0), expected(q, own(held), 1.0)
    torch.testing.assert_close(found.output[0].double(), want.output[0], atol=TIGHT, rtol=0)
    # The log sum of a split is a float32, so of two splits the weights err by its last place.
    close(found, want, tolerance=LARGE)
    assert (found.lse.abs() > 9e3).all()


def test_one_key_may_outweigh_all_others_in_any_split() -> None:
    """A score 3,000 above the rest, wherever it lies, is the result: the largest of all splits is what counts."""
    held = cache([150] * 3)
    q = queries(3, heads=1)
    for row, at in enumerate((3, 70, 149)):
        where = rows_of(held.table[row], at, 1, held.page)
        held.latents[where] = q[row] * 1e4 / q[row].square().sum()
    close(run(q, held), expected(q, own(held), 0.3), tolerance=1e-3)


@pytest.mark.parametrize("codec", [Int8Latents, Fp8Latents])
@pytest.mark.parametrize("by_hand", [True, False])
def test_codes_of_very_unequal_scales(
    codec: type[Int8Latents | Fp8Latents], by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two parts of a row have scales of their own: one 1e5 times the other, both in the scores alike."""
    monkeypatch.setattr("evalgate.kernels.gpu.paged_latents.capability", lambda _: 80 if by_hand else 90)
    held = cache([70, 3, 0])
    plain = held.latents.nan_to_num(0.0)
    plain[:, LATENT:] *= 1e5
    form = codec(LATENT, SIDE, torch.float32)
    codes, scales = form.encode(plain)
    decoded = form.decode((codes.clone(), scales))
    q = queries(3)
    q[..., LATENT:] *= 1e-5
    where = torch.cat([rows_of(held.table[b], 0, int(held.count[b]), held.page) for b in range(3)])
    unread = torch.ones(len(scales), dtype=torch.bool)
    unread[where] = False
    scales[unread] = torch.nan
    found = mla_decode(
        q, codes, held.table, held.first, held.count, scale=0.3, latent_width=LATENT, page=held.page, scales=scales
    )
    close(found, expected(q, own(held, decoded), 0.3), tolerance=2 * TIGHT)


def test_every_code_of_fp8_decodes_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 254 numbers, subnormal ones included, come out exactly; the two that are NaN stay NaN."""
    monkeypatch.setattr("evalgate.kernels.gpu.paged_latents.capability", lambda _: 80)
    codes = torch.arange(256, dtype=torch.uint8)
    codes[127::128] = 0
    latents = torch.zeros(18 * 16, 32, dtype=torch.uint8)
    latents[::16, :16] = torch.cat([codes, torch.zeros(32, dtype=torch.uint8)]).view(18, 16)
    latents[16 * 16, 3], latents[16 * 17, 4] = 127, 255
    batch = torch.arange(18)
    found = mla_decode(
        torch.zeros(18, 1, 32),
        latents.view(torch.float8_e4m3fn),
        batch[:, None],
        torch.zeros_like(batch),
        torch.ones_like(batch),
        scale=1.0,
        latent_width=16,
        page=16,
        scales=torch.ones(18 * 16, 2),
    )
    assert torch.equal(found.output[:16].flatten(), codes.view(torch.float8_e4m3fn).float())
    assert torch.isnan(found.output[16:]).all()


def groups(held: Cache, lengths: list[int], rows: list[int], firsts: list[int]) -> tuple[Tensor, Shared]:
    """Prefixes in pages of their own behind the pool of ``held``: the larger pool, and what the groups see."""
    more = cache(lengths, page=held.page, firsts=firsts)
    table = more.table + len(held.latents) // held.page
    pool = torch.cat([held.latents, more.latents])
    return pool, Shared(table, more.first, more.count, torch.tensor(rows))


@pytest.mark.parametrize("page", [16, 64])
def test_groups_see_their_prefix_and_their_own(page: int) -> None:
    """Two groups and a row on each side that is in none; one prefix is empty for good measure, one row has no own."""
    held = cache([5, 30, 0, 17, 64, 1], page=page)
    pool, shared = groups(held, [100, 0, 33], [1, 4, 4, 5], [2, 0, 0])
    held = replace(held, latents=pool)
    q = queries(6)
    seen, table = own(held), shared.table
    for row, group in ((1, 0), (2, 0), (3, 0), (4, 2)):
        where = rows_of(table[group], int(shared.first[group]), int(shared.count[group]), page)
        seen[row] = torch.cat([pool[where], seen[row]])
    close(run(q, held, shared=shared), expected(q, seen, 0.3))


def test_a_row_does_not_depend_on_its_batch() -> None:
    """Alone, among longer rows, with a wider table or in a larger group: the same bits."""
    held = cache([130, 200, 40])
    pool, shared = groups(held, [90], [0, 3], [0])
    held = replace(held, latents=pool)
    q = queries(3)
    together = run(q, held, shared=shared)
    wider = replace(held, table=torch.nn.functional.pad(held.table, (0, 40), value=-1))
    for found, want in zip(run(q, wider, shared=shared), together, strict=True):
        assert torch.equal(found, want)
    for row in range(3):
        alone = Cache(pool, held.table[row : row + 1], held.first[row : row + 1], held.count[row : row + 1], 16)
        group = replace(shared, rows=torch.tensor([0, 1]))
        for found, want in zip(run(q[row : row + 1], alone, shared=group), together, strict=True):
            assert torch.equal(found[0], want[row])


def test_int32_tables_views_and_odd_widths() -> None:
    """A layer's view of a pool, queries cut from a wider tensor, widths that are no powers of 2."""
    held = cache([20, 77], width=24 + 10)
    layers = torch.full((3, *held.latents.shape), torch.nan)
    layers[1] = held.latents
    wide = torch.full((2, 5, 40), torch.nan)
    wide[:, 1:4, 2:36] = queries(2, width=34)
    q = wide[:, 1:4, 2:36]
    held = replace(held, latents=layers[1], table=held.table.int())
    close(run(q, held, latent=24), expected(q, own(held), 0.3, latent=24))


def test_bfloat16_rounds_what_it_must() -> None:
    """Rounded latents and queries are multiplied as they are; weights and results are rounded once."""
    held = cache([130, 17])
    held = replace(held, latents=held.latents.bfloat16())
    q = queries(2).bfloat16()
    found = run(q, held)
    assert found.output.dtype == torch.bfloat16
    close(found, expected(q, own(held), 0.3), tolerance=ROUNDED)


def test_nan_in_a_latent_reaches_only_the_rows_that_see_it() -> None:
    """A fault stays visible, and in its row."""
    held = cache([40, 40])
    held.latents[rows_of(held.table[0], 7, 1, 16), 3] = torch.nan
    found = run(queries(2), held)
    assert torch.isnan(found.output[0]).all()
    assert torch.isnan(found.lse[0]).all()
    assert torch.isfinite(found.output[1]).all()


def test_offsets_do_not_wrap(tmp_path: Path) -> None:
    """A page that starts beyond 2^31 elements of the pool is found; the file is sparse and takes no room."""
    width, page = LATENT + SIDE, 64
    far = 2**31 // (width * page) + 3
    pool = torch.from_file(str(tmp_path / "pool"), shared=True, size=(far + 1) * page * width, dtype=torch.int8)
    pool = pool.view(-1, width)
    form = Int8Latents(LATENT, SIDE, torch.float32)
    plain = torch.randn(page, width, generator=torch.Generator().manual_seed(4))
    pool[far * page :], last = form.encode(plain)
    scales = torch.from_file(str(tmp_path / "scales"), shared=True, size=2 * len(pool), dtype=torch.float32)
    scales = scales.view(-1, 2)
    scales[far * page :] = last
    q = queries(1)
    at = torch.tensor([[far]])
    found = mla_decode(q, pool, at, at[0] * 0, at[0] * 0 + 50, scale=0.3, latent_width=LATENT, page=page, scales=scales)
    decoded = form.decode((pool[far * page :].clone(), last))
    close(found, expected(q, [decoded[:50]], 0.3))


def test_splits_follow_from_the_length_alone() -> None:
    """Room for parts grows with the table up to a limit, in whole units."""
    table = torch.empty(1, 10**6, dtype=torch.int32, device="meta")
    assert module._parts(table[:, :1], 64) == 8
    assert module._parts(table[:, :16], 64) == 16
    assert module._parts(table, 64) == module.SPLITS
