"""Views of a batch: page tables, what rows have in common, and the fixed tensors of a recorded decode step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from evalgate.engine.batch import NO_PAGE, DecodeBatch, PrefillBatch
from evalgate.engine.decode_graphs import DecodeGraphs, Shape, again, fill, fixed_batch
from evalgate.engine.page_pool import PagePool
from evalgate.engine.session import Session
from evalgate.kernels.latent_codec import FloatLatents

PAGE = 16


@pytest.fixture
def pool() -> PagePool:
    """Forty pages of 16 tokens."""
    codec = FloatLatents(4, torch.float32, torch.float32)
    return PagePool(1, 40, page=PAGE, codec=codec, poison=True)


def session(number: int, pages: Sequence[int], cached: int) -> Session:
    """A session of so many tokens in these pages."""
    return Session(id=number, slot=number, tokens=cached, pages=list(pages), cached=cached)


def decode_batch(pool: PagePool, sessions: Sequence[Session], common: int = 0) -> DecodeBatch:
    """A step for these sessions, whose tokens and targets are easy to tell apart."""
    numbers = torch.tensor([s.id for s in sessions])
    return DecodeBatch(
        sessions=sessions,
        pool=pool,
        tokens=100 + numbers,
        slots=numbers,
        targets=1000 + numbers,
        floors=[s.floor for s in sessions],
        common=common,
    )


@pytest.mark.parametrize(
    ("pages", "cached", "common"),
    [
        ([[1, 2, 3], [1, 2, 4]], 40, 2 * PAGE),
        ([[1, 2, 3], [1, 2, 3]], 40, 2 * PAGE),
        ([[1, 2, 3], [5, 2, 3]], 48, 0),
        ([[1, 2, 3, 9], [1, 7, 3, 8]], 60, PAGE),
        ([[1, 2], [1, 2]], 32, 2 * PAGE),
    ],
    ids=str,
)
def test_rows_have_in_common_what_begins_in_the_same_full_pages(
    pool: PagePool, pages: list[list[int]], cached: int, common: int
) -> None:
    """Up to the first page that differs, and never a page that is not full."""
    sessions = [session(number, own, cached) for number, own in enumerate(pages, 1)]
    batch = PrefillBatch(
        sessions=sessions,
        pool=pool,
        tokens=torch.zeros(2, 3, dtype=torch.int64),
        counts=[3, 2],
        slots=torch.tensor([1, 2]),
        targets=slice(0, 5),
    )
    assert batch.common == common


def test_table_starts_where_a_row_sees_and_ends_with_its_new_token(pool: PagePool) -> None:
    """Short rows are filled up with no page at all."""
    table = decode_batch(pool, [session(1, [4, 5, 6], 40), session(2, [7], 10)]).table
    assert table.pages.tolist() == [[4, 5, 6], [7, NO_PAGE, NO_PAGE]]
    assert (table.first.tolist(), table.counts.tolist()) == ([0, 0], [41, 11])


def test_a_smaller_step_leaves_nothing_of_a_larger_one(pool: PagePool) -> None:
    """Rows that nobody asked for work on scratch and see nothing: their last slot may belong to someone else by now."""
    three = [session(1, [1, 2, 3], 40), session(2, [4, 5, 6], 40), session(3, [7, 8, 9, 10], 60)]
    large = decode_batch(pool, three, common=PAGE)
    fixed = fixed_batch(Shape.of(large), pool, torch.device("cpu"))
    assert fixed.tokens.shape == (4,)
    fill(fixed, large)
    fill(fixed, decode_batch(pool, [session(5, [11, 12], 20)], common=PAGE))
    assert fixed.tokens.tolist() == [105, 0, 0, 0]
    assert fixed.slots.tolist() == [5, 0, 0, 0]
    assert torch.as_tensor(fixed.targets).tolist() == [1005, 0, 0, 0]
    assert fixed.table.pages.tolist() == [[11, 12, NO_PAGE, NO_PAGE], *[[NO_PAGE] * 4] * 3]
    assert fixed.table.first.tolist() == [PAGE, 0, 0, 0]
    assert fixed.table.counts.tolist() == [5, 0, 0, 0]
    assert fixed.shared_table is not None
    assert fixed.shared_table.pages.tolist() == [[11, 12, NO_PAGE, NO_PAGE]]
    assert (fixed.shared_table.first.tolist(), fixed.shared_table.counts.tolist()) == ([0], [PAGE])


def test_steps_of_one_shape_are_recorded_once_on_scratch_and_answer_each_for_itself(pool: PagePool) -> None:
    """What a step returned stays when the next one runs, and recording touches no live slot."""
    touched: list[list[int]] = []

    def step(batch: DecodeBatch) -> torch.Tensor:
        touched.append(batch.slots.tolist())
        return batch.tokens[:, None].float()

    graphs = DecodeGraphs(step, again)
    first = graphs(decode_batch(pool, [session(1, [1], 5), session(2, [2], 5)]))
    second = graphs(decode_batch(pool, [session(3, [3], 5), session(4, [4], 5)]))
    assert (first.tolist(), second.tolist()) == ([[101.0], [102.0]], [[103.0], [104.0]])
    assert touched == [[0, 0], [1, 2], [3, 4]]
