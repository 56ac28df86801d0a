"""Paged cache of the full-attention layers: the latents of a page of tokens, for all such layers.

Page 0 is scratch and never handed out.  Forks share full pages by reference and own what they write; a partly filled
page is copied, never shared.  Latents are stored in the compute dtype, or in int8 with one scale a token and part.
"""

from __future__ import annotations

import heapq

import torch
from torch import Tensor

from evalgate.engine.config import ModelConfig
from evalgate.errors import DoesNotFitError
from evalgate.kernels.latent_codec import EncodedLatents, decode_latents, encode_latents

Rows = slice | Tensor
"""Token rows of the pool: a run, or int64 row numbers."""


class PagePool:
    """``store`` is ``[layers, pages * page, L + R]``; ``scales`` is ``[layers, pages * page, 2]`` for int8."""

    def __init__(
        self, config: ModelConfig, pages: int, *, page: int, dtype: torch.dtype, quantised: bool, poison: bool
    ) -> None:
        rows = (pages + 1) * page
        self.page = page
        self.latent = config.kv_rank
        self.dtype = dtype
        self.quantised = quantised
        self._poison = poison
        # Not zeroed: untouched pages cost no memory, and no row is read before it is written. Scratch is zeroed.
        self.store = torch.empty(config.mla_layers, rows, config.latent_row, dtype=torch.int8 if quantised else dtype)
        self.scales = torch.empty(config.mla_layers, rows if quantised else 0, 2)
        if poison:
            self._fill_with_nan(slice(0, rows))
        self.store[:, :page] = 0
        self.scales[:, :page] = 0
        self._references = [0] * (pages + 1)
        self._free = list(range(1, pages + 1))

    @property
    def free(self) -> int:
        """Pages that may still be allocated."""
        return len(self._free)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return self.store[:, : self.page].nbytes + self.scales[:, : self.page].nbytes

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
                    self._fill_with_nan(slice(page * self.page, (page + 1) * self.page))
                heapq.heappush(self._free, page)

    def copy_rows(self, source: Rows, target: Rows) -> None:
        """Copy token rows in all layers."""
        self.store[:, target] = self.store[:, source]
        if self.quantised:
            self.scales[:, target] = self.scales[:, source]

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
        """Latents ``[S, L + R]`` in the compute dtype; a view where rows are a run and nothing is quantised."""
        stored = self.store[layer][rows]
        if not self.quantised:
            return stored
        return decode_latents(EncodedLatents(stored, self.scales[layer][rows]), self.latent, self.dtype)

    def as_stored(self, latents: Tensor) -> Tensor:
        """What :meth:`read` would give back for ``[..., L + R]`` latents that were written."""
        if not self.quantised:
            return latents
        return decode_latents(encode_latents(latents, self.latent), self.latent, self.dtype)

    def write(self, layer: int, rows: Rows, latents: Tensor) -> None:
        """Store ``[S, L + R]`` latents."""
        if not self.quantised:
            self.store[layer][rows] = latents
            return
        encoded = encode_latents(latents, self.latent)
        self.store[layer][rows] = encoded.codes
        self.scales[layer][rows] = encoded.scales

    def _fill_with_nan(self, rows: slice) -> None:
        # Codes cannot say NaN; their scales can.
        (self.scales if self.quantised else self.store)[:, rows] = torch.nan
