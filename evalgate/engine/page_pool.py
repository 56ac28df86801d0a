"""Paged cache of the full-attention layers: the latents of a page of tokens, for all such layers.

Page 0 is scratch and never handed out.  Forks share full pages by reference and own what they write; a partly filled
page is copied, never shared.  A codec says in which tensors a token's latents are stored.
"""

from __future__ import annotations

import heapq

import torch
from torch import Tensor

from evalgate.engine.state_pool import fill_with_nan
from evalgate.errors import DoesNotFitError
from evalgate.kernels.latent_codec import LatentCodec

Rows = slice | Tensor
"""Token rows of the pool: a run, or int64 row numbers."""


class PagePool:
    """``columns`` are ``[layers, pages * page, width]``, one for each tensor of the codec's rows."""

    def __init__(
        self,
        layers: int,
        pages: int,
        *,
        page: int,
        codec: LatentCodec,
        device: torch.device | None = None,
        poison: bool,
    ) -> None:
        rows = (pages + 1) * page
        self.page, self.codec = page, codec
        self._poison = poison
        # Not zeroed: untouched pages cost no memory, and no row is read before it is written. Scratch is zeroed.
        self.columns = tuple(torch.empty(layers, rows, c.width, dtype=c.dtype, device=device) for c in codec.columns)
        if poison:
            fill_with_nan(self.columns)
        for column in self.columns:
            column[:, :page] = 0
        self._references = [0] * (pages + 1)
        self._free = list(range(1, pages + 1))

    @property
    def free(self) -> int:
        """Pages that may still be allocated."""
        return len(self._free)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return sum(column[:, : self.page].nbytes for column in self.columns)

    @property
    def size(self) -> int:
        """Pages, free or taken."""
        return len(self._references) - 1

    def references(self, page: int) -> int:
        """How many hold a page."""
        return self._references[page]

    def allocate(self, count: int) -> list[int]:
        """Pages with one reference each, lowest numbers first so that runs stay together."""
        if count > len(self._free):
            raise DoesNotFitError(
                f"{count} pages of {self.page} tokens wanted, {len(self._free)} free; release a session first"
            )
        pages = [heapq.heappop(self._free) for _ in range(count)]
        for page in pages:
            assert self._references[page] == 0, f"page {page} is free and yet referenced"
            self._references[page] = 1
        return pages

    def retain(self, pages: list[int]) -> None:
        """Add a reference to each page."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is shared after it was released"
            self._references[page] += 1

    def release(self, pages: list[int]) -> None:
        """Drop a reference from each page; scratch is ignored."""
        for page in pages:
            if page == 0:
                continue
            self._references[page] -= 1
            assert self._references[page] >= 0, f"page {page} is released twice"
            if self._references[page] == 0:
                if self._poison:
                    rows = slice(page * self.page, (page + 1) * self.page)
                    fill_with_nan([column[:, rows] for column in self.columns])
                heapq.heappush(self._free, page)

    def copy_rows(self, source: Rows, target: Rows) -> None:
        """Copy token rows in all layers."""
        for column in self.columns:
            column[:, target] = column[:, source]

    def locate(self, table: list[int], first: int, count: int) -> Rows:
        """Rows [first, first + count) of the session whose pages are ``table``."""
        if not count:
            return slice(0, 0)
        start = first // self.page
        pages = table[start : (first + count - 1) // self.page + 1]
        offset = first - start * self.page
        if pages == list(range(pages[0], pages[0] + len(pages))):
            row = pages[0] * self.page + offset
            return slice(row, row + count)
        grid = torch.tensor(pages, dtype=torch.int64)[:, None] * self.page + torch.arange(self.page)
        return grid.flatten()[offset : offset + count]

    def read(self, layer: int, rows: Rows) -> Tensor:
        """Latents ``[S, L + R]`` in the compute dtype; a view where rows are a run and stored in it."""
        return self.codec.decode(tuple(column[layer][rows] for column in self.columns))

    def write(self, layer: int, rows: Rows, latents: Tensor) -> None:
        """Store ``[S, L + R]`` latents."""
        for column, values in zip(self.columns, self.codec.encode(latents), strict=True):
            column[layer][rows] = values


def indices(rows: Rows) -> Tensor:
    """A selection as int64 row numbers."""
    return torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
