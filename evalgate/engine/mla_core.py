"""The middle of a latent-attention layer: queries over the latents of earlier tokens and of their own.

What runs it differs by device; what goes in and what comes out do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from evalgate.engine.batch import DecodeBatch, PrefillBatch
from evalgate.engine.page_pool import PagePool
from evalgate.kernels.mla_decode import mla_decode
from evalgate.kernels.mla_prefill import KeyTile, MlaWeights, mla_prefill


class MlaParameters(NamedTuple):
    """What a layer has learned for its core, and its place in the page pool."""

    layer: int
    joined: Tensor
    """``[H, N + V, L]``: how each head expands a latent to its key, and below it to its value."""
    expand: MlaWeights
    """The two halves of it."""
    scale: float


class MlaCore(Protocol):
    """One way to run the core; the latents of the new tokens are in their pages already."""

    def prefill(self, mla: MlaParameters, q: Tensor, latents: Tensor, batch: PrefillBatch, pages: PagePool) -> Tensor:
        """Queries ``[B, T, H, N + R]``, or ``[B, 1, H, N + R]`` of each row's last token, -> ``[B, T or 1, H, V]``.

        ``latents`` ``[B, T, L + R]`` are those of the stretch itself, before they were stored.
        """
        ...

    def decode(self, mla: MlaParameters, q: Tensor, batch: DecodeBatch, pages: PagePool) -> Tensor:
        """Queries ``[B, H, N + R]`` of one token for each row -> ``[B, H, V]``."""
        ...


class TorchMla:
    """By torch operations, over runs of rows."""

    def prefill(self, mla: MlaParameters, q: Tensor, latents: Tensor, batch: PrefillBatch, pages: PagePool) -> Tensor:
        """Tile by tile, the stretch's own last."""
        return mla_prefill(q, self._tiles(mla.layer, q, latents, batch, pages), mla.expand, mla.scale)

    def decode(self, mla: MlaParameters, q: Tensor, batch: DecodeBatch, pages: PagePool) -> Tensor:
        """Row by row, and once for what all rows share."""
        rows = [pages.read(mla.layer, row) for row in batch.rows]
        shared = None if batch.shared is None else pages.read(mla.layer, batch.shared)
        return mla_decode(q, rows, mla.expand, mla.scale, shared=shared)

    @staticmethod
    def _tiles(index: int, q: Tensor, latents: Tensor, batch: PrefillBatch, pages: PagePool) -> Iterator[KeyTile]:
        last = q.shape[1] < latents.shape[1]
        for tile in batch.past:
            first, *others = [pages.read(index, rows)[None] for rows in tile.rows]
            visible = batch.seen_last(tile.visible) if last else tile.visible
            yield KeyTile(torch.cat([first, *others]) if others else first, visible)
        own, visible = pages.codec.as_stored(latents), batch.own_visible
        if not last:
            yield KeyTile(own, visible, causal=visible is None)
        elif visible is None and batch.lengths is None:
            yield KeyTile(own)
        else:
            causal = torch.ones(2 * own.shape[1:2], dtype=torch.bool).tril()
            yield KeyTile(own, batch.seen_last(causal if visible is None else visible))
