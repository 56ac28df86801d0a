"""Decode steps of fixed shapes, recorded once and replayed: a GPU then does not wait for the processor between kernels.

A recording always reads the same tensors, so each step writes its whole batch into them: rows that nobody asked for
work on scratch (slot 0, page 0) and see nothing.  Shapes are powers of two, so that few are recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evalgate.engine.batch import NO_PAGE, DecodeBatch, PageTable
from evalgate.engine.page_pool import PagePool, indices

Recorder = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes a function without arguments, gives one that does the same again."""


class Shape(NamedTuple):
    """What a recording is made for."""

    rows: int
    pages: int
    """Of the widest row's table."""
    shared: int
    """Pages of what all rows share; 0: nothing is."""

    @classmethod
    def of(cls, batch: DecodeBatch) -> Shape:
        """The least powers of two that a batch fits in."""
        shared = batch.shared_table
        return cls(
            _power(len(batch.tokens)),
            _power(batch.table.pages.shape[1]),
            0 if shared is None else _power(shared.pages.shape[1]),
        )


def fixed_batch(shape: Shape, pool: PagePool, device: torch.device) -> DecodeBatch:
    """A batch whose views are there from the start, for a recording to read."""

    def whole(*size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64, device=device)

    def table(rows: int, pages: int) -> PageTable:
        return PageTable(whole(rows, pages).fill_(NO_PAGE), whole(rows), whole(rows))

    tokens, slots, targets = (whole(shape.rows) for _ in range(3))
    batch = DecodeBatch(sessions=(), pool=pool, tokens=tokens, slots=slots, targets=targets, floors=(), common=0)
    shared = table(1, shape.shared) if shape.shared else None
    vars(batch).update(table=table(shape.rows, shape.pages), shared_table=shared)
    return batch


def fill(fixed: DecodeBatch, batch: DecodeBatch) -> None:
    """Write a batch into a fixed one, all of it; rows that it has no use for work on scratch."""
    for target, values in ((fixed.tokens, batch.tokens), (fixed.slots, batch.slots)):
        _fill(target, values)
    _fill(indices(fixed.targets), indices(batch.targets))
    _fill_table(fixed.table, batch.table)
    if fixed.shared_table is not None and batch.shared_table is not None:
        _fill_table(fixed.shared_table, batch.shared_table)


class _Recording(NamedTuple):
    batch: DecodeBatch
    hidden: Tensor
    replay: Callable[[], None]


class DecodeGraphs:
    """Recorded decode steps of one model; ``step`` is what is recorded: a batch -> ``[rows, hidden]``."""

    def __init__(self, step: Callable[[DecodeBatch], Tensor], record: Recorder) -> None:
        self._step, self._record = step, record
        self._recordings: dict[Shape, _Recording] = {}

    def __call__(self, batch: DecodeBatch) -> Tensor:
        """``[B, hidden]``, a copy: the next step writes over the recording's own."""
        shape = Shape.of(batch)
        if shape not in self._recordings:
            self._recordings[shape] = self._recorded(shape, batch)
        recording = self._recordings[shape]
        fill(recording.batch, batch)
        recording.replay()
        return recording.hidden[: len(batch.tokens)].clone()

    def _recorded(self, shape: Shape, like: DecodeBatch) -> _Recording:
        """Recorded on scratch alone, so that no session notices."""
        batch = fixed_batch(shape, like.pool, like.tokens.device)
        hidden = torch.zeros_like(self._step(batch))

        def step() -> None:
            hidden.copy_(self._step(batch))

        return _Recording(batch, hidden, self._record(step))


def again(step: Callable[[], None]) -> Callable[[], None]:
    """A recorder for where there is nothing to record: the step itself."""
    return step


def cuda_graph(step: Callable[[], None]) -> Callable[[], None]:
    """Record the kernels of a step, which must not wait for the device."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # as torch has it
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()  # compiles what is not compiled yet, which a recording must not
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # One pool for all recordings: steps never overlap, and what a step leaves behind lies outside of it.
    with torch.cuda.graph(graph, pool=_pool()):
        step()
    return graph.replay


@functools.cache
def _pool() -> Any:
    return torch.cuda.graph_pool_handle()


def _power(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _fill(target: Tensor, values: Tensor) -> None:
    target[: len(values)] = values
    target[len(values) :] = 0


def _fill_table(target: PageTable, table: PageTable) -> None:
    rows, width = table.pages.shape
    target.pages.fill_(NO_PAGE)
    target.pages[:rows, :width] = table.pages
    _fill(target.first, table.first)
    _fill(target.counts, table.counts)
