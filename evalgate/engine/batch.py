"""What one forward pass works on: tokens, and where each row's state and latents lie.

Kernels differ in how they want to be told where latents are, in runs of rows or by page tables.  Each view is made from
the sessions when it is first asked for, once for all layers of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from evalgate.engine.page_pool import PagePool, Rows
from evalgate.engine.session import Session

if TYPE_CHECKING:
    from evalgate.kernels.gpu.kda_chunks import Chunks
    from evalgate.kernels.gpu.mla_prefill import Stretches
    from evalgate.kernels.gpu.short_conv import Packed

TILE = 1024
"""Cached tokens that attention expands at a time."""
NO_PAGE = -1
"""In a page table: nothing is there, and nothing may be read."""


class PastTile(NamedTuple):
    """A run of cached latents before a stretch: one entry in ``rows`` that all share, or one for each row."""

    rows: list[Rows]
    visible: Tensor | None
    """bool ``[T, S]``; None: every query sees all of it."""


class PageTable(NamedTuple):
    """Cached latents of B rows by their pages; the new tokens' own are included."""

    pages: Tensor
    """int64 ``[B, P]``, filled up with -1."""
    first: Tensor
    """int64 ``[B]``: the first position that is seen."""
    counts: Tensor
    """int64 ``[B]`` positions from there on."""


@dataclass(frozen=True, kw_only=True)
class PrefillBatch:
    """B stretches of up to T tokens that start at the same position, in sessions that see alike."""

    sessions: Sequence[Session]
    pool: PagePool
    tokens: Tensor
    """int64 ``[B, T]``, padded at the end."""
    counts: Sequence[int]
    """Real tokens of each row."""
    slots: Tensor
    """int64 ``[B]``"""
    targets: Rows
    """Where the latents of the real tokens go, row after row."""

    @property
    def start(self) -> int:
        """Tokens before the stretch."""
        return self.sessions[0].tokens

    @cached_property
    def lengths(self) -> Tensor | None:
        """int64 ``[B]`` real tokens of each row; None: no row is padded."""
        if min(self.counts) == self.tokens.shape[1]:
            return None
        return torch.tensor(self.counts, dtype=torch.int64, device=self.tokens.device)

    @cached_property
    def real(self) -> Tensor | None:
        """Which tokens are real, bool ``[B, T]``; None as above."""
        if self.lengths is None:
            return None
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    @cached_property
    def packing(self) -> Packed:
        """The real tokens of all rows, one after another."""
        from evalgate.kernels.gpu.short_conv import Packed  # triton is not everywhere

        return Packed.of(self.counts, self.tokens.device)

    @cached_property
    def chunks(self) -> Chunks:
        """The same, in chunks of 64."""
        from evalgate.kernels.gpu.kda_chunks import Chunks

        return Chunks.of(self.counts, self.tokens.device)

    @cached_property
    def runs(self) -> Stretches:
        """Where the queries of all real tokens stand, and what they see."""
        return self._runs(self.counts, self.sessions[0].cached)

    @cached_property
    def last_runs(self) -> Stretches:
        """The same of each row's last real token alone."""
        first = self.sessions[0].cached
        starts = torch.tensor([first + count - 1 for count in self.counts], device=self.tokens.device)
        return self._runs([1] * len(self.counts), first)._replace(start=starts)

    def _runs(self, counts: Sequence[int], start: int) -> Stretches:
        from evalgate.kernels.gpu.mla_prefill import Stretches

        first, device = self.sessions[0], self.tokens.device
        offsets = torch.tensor([0, *accumulate(counts)], device=device)
        starts = torch.full((len(counts),), start, device=device)
        # Rows are token positions as long as nothing was cut out; afterwards nothing is hidden.
        rules = first.visibility.rules() if first.cached == first.tokens else None
        table = None if rules is None else torch.tensor([rules] * len(counts), device=device)
        return Stretches(offsets, starts, max(counts), range(first.floor, first.cached + max(self.counts)), table)

    @cached_property
    def common(self) -> int:
        """Cached positions that lie in the same full pages for all rows."""
        page = self.pool.page
        columns = zip(*(session.pages[: session.cached // page] for session in self.sessions), strict=True)
        return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns)) * page

    def packed(self, x: Tensor) -> Tensor:
        """``[B, T, ...]`` -> ``[N, ...]``: the real tokens."""
        return x.flatten(0, 1) if self.real is None else x[self.real]

    def padded(self, x: Tensor) -> Tensor:
        """``[N, ...]`` -> ``[B, T, ...]``, zeros where nothing is real."""
        rows = self.tokens.shape
        if self.real is None:
            return x.view(*rows, *x.shape[1:])
        whole = x.new_zeros(*rows, *x.shape[1:])
        whole[self.real] = x
        return whole

    def last(self, x: Tensor) -> Tensor:
        """Of ``[B, T, ...]`` each row's last real token, ``[B, 1, ...]``."""
        if self.lengths is None:
            return x[:, -1:]
        return x[torch.arange(len(x), device=x.device), self.lengths - 1][:, None]

    def seen_last(self, visible: Tensor | None) -> Tensor | None:
        """What the last real tokens see, bool ``[B, 1, S]``, of what all see, bool ``[T, S]``; None: all of it."""
        return None if visible is None else self.last(visible.expand(len(self.tokens), -1, -1))

    @property
    def _queries(self) -> range:
        return range(self.start, self.start + self.tokens.shape[1])

    @cached_property
    def own_visible(self) -> Tensor | None:
        """What the stretch sees of itself, bool ``[T, T]``; None: causal."""
        return self.sessions[0].visibility.mask(self._queries, self._queries)

    @cached_property
    def past(self) -> list[PastTile]:
        """Latents before the stretch, tile by tile."""
        first, tiles = self.sessions[0], []
        for start in range(first.floor, first.cached, TILE):
            keys = range(start, min(start + TILE, first.cached))
            touched = slice(keys.start // self.pool.page, (keys.stop - 1) // self.pool.page + 1)
            alike = all(session.pages[touched] == first.pages[touched] for session in self.sessions)
            rows = [
                self.pool.locate(session.pages, start, len(keys)) for session in ([first] if alike else self.sessions)
            ]
            # Rows are token positions as long as nothing was cut out; afterwards nothing is hidden.
            whole = first.cached == first.tokens
            tiles.append(PastTile(rows, first.visibility.mask(self._queries, keys) if whole else None))
        return tiles

    @cached_property
    def table(self) -> PageTable:
        """Latents before the stretch and its own."""
        counts = [session.cached + count for session, count in zip(self.sessions, self.counts, strict=True)]
        return page_table(self.sessions, [session.floor for session in self.sessions], counts, self.tokens.device)


@dataclass(frozen=True, kw_only=True)
class DecodeBatch:
    """One token for each of B sessions of unequal length."""

    sessions: Sequence[Session]
    pool: PagePool
    tokens: Tensor
    """int64 ``[B]``"""
    slots: Tensor
    """int64 ``[B]``"""
    targets: Rows
    """Where the latents of the tokens go."""
    floors: Sequence[int]
    """First cached latent that each row sees."""
    common: int
    """Cached latents up to here are the same for all rows."""

    @cached_property
    def shared(self) -> Rows | None:
        """Cached latents that all rows see."""
        if self.common <= self.floors[0]:
            return None
        return self.pool.locate(self.sessions[0].pages, self.floors[0], self.common - self.floors[0])

    @cached_property
    def rows(self) -> list[Rows]:
        """The other cached latents of each row, its new one included."""
        return [
            self.pool.locate(session.pages, start, session.cached + 1 - start)
            for session, start in zip(self.sessions, self._starts, strict=True)
        ]

    @cached_property
    def shared_table(self) -> PageTable | None:
        """What all rows see, as the table of a single row."""
        if self.common <= self.floors[0]:
            return None
        return page_table(self.sessions[:1], self.floors[:1], [self.common], self.tokens.device)

    @cached_property
    def table(self) -> PageTable:
        """The other cached latents of each row, its new one included."""
        counts = [session.cached + 1 for session in self.sessions]
        return page_table(self.sessions, self._starts, counts, self.tokens.device)

    @property
    def _starts(self) -> list[int]:
        return [max(floor, self.common) for floor in self.floors]


def page_table(
    sessions: Sequence[Session], starts: Sequence[int], ends: Sequence[int], device: torch.device
) -> PageTable:
    """Positions ``[starts[b], ends[b])`` of each session."""
    longest = max(len(session.pages) for session in sessions)
    rows = [[*session.pages, *[NO_PAGE] * (longest - len(session.pages))] for session in sessions]
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    return PageTable(*(torch.tensor(x, dtype=torch.int64, device=device) for x in (rows, list(starts), counts)))
