"""Multi-head latent attention as a layer: projections, the latents it caches, and attention over them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear

from evalgate.engine.batch import DecodeBatch, PrefillBatch
from evalgate.engine.config import ModelConfig
from evalgate.engine.page_pool import PagePool
from evalgate.engine.weights import Weights
from evalgate.kernels.mla_decode import mla_decode
from evalgate.kernels.mla_prefill import KeyTile, MlaWeights, mla_prefill
from evalgate.kernels.rms_norm import rms_norm

LATENT_EPS = 1e-6
"""The norms of the low-rank parts have this epsilon whatever ``rms_norm_eps`` says."""


class MlaLayer:
    """Weights of one layer, and its place ``index`` in the page pool."""

    def __init__(self, config: ModelConfig, weights: Weights, at: str, index: int, dtype: torch.dtype) -> None:
        self.index = index
        self.heads, self.rank, self.rope = config.heads, config.kv_rank, config.rope
        self.scale = (config.nope + config.rope) ** -0.5
        query = "q_proj" if config.q_rank is None else "q_a_proj"
        self.query = weights.read(f"{at}.{query}.weight", dtype=dtype)
        self.latents = weights.read(f"{at}.kv_a_proj_with_mqa.weight", dtype=dtype)
        self.low_rank_query: tuple[Tensor, Tensor] | None = None
        if config.q_rank is not None:
            norm = weights.read(f"{at}.q_a_layernorm.weight", dtype=dtype)
            self.low_rank_query = (norm, weights.read(f"{at}.q_b_proj.weight", dtype=dtype))
        self.latent_norm = weights.read(f"{at}.kv_a_layernorm.weight", dtype=dtype)
        expand = torch.unflatten(weights.read(f"{at}.kv_b_proj.weight", dtype=dtype), 0, (config.heads, -1))
        self.expand = MlaWeights(expand[:, : config.nope], expand[:, config.nope :])
        self.output = weights.read(f"{at}.o_proj.weight", dtype=dtype)

    def prefill(self, x: Tensor, batch: PrefillBatch, pages: PagePool, *, last: bool = False) -> Tensor:
        """``[B, T, hidden]`` -> the same, or ``[B, 1, hidden]``: only each row's ``last`` token; caches all latents."""
        q, latents = self._queries(batch.last(x) if last else x), self._latents(x)
        real = latents.flatten(0, 1) if batch.real is None else latents[batch.real]
        pages.write(self.index, batch.targets, real)
        mixed = mla_prefill(q, self._tiles(latents, batch, pages, last), self.expand, self.scale)
        return linear(mixed.flatten(-2), self.output)

    def decode(self, x: Tensor, batch: DecodeBatch, pages: PagePool) -> Tensor:
        """One token for each row, ``[B, hidden]`` -> the same; caches the latents."""
        q, latents = self._queries(x), self._latents(x)
        pages.write(self.index, batch.targets, latents)
        rows = [pages.read(self.index, row) for row in batch.rows]
        shared = None if batch.shared is None else pages.read(self.index, batch.shared)
        return linear(mla_decode(q, rows, self.expand, self.scale, shared=shared).flatten(-2), self.output)

    def _queries(self, x: Tensor) -> Tensor:
        """``[..., H, N + R]``"""
        q = linear(x, self.query)
        if self.low_rank_query is not None:
            norm, up = self.low_rank_query
            q = linear(rms_norm(q, norm, LATENT_EPS), up)
        return torch.unflatten(q, -1, (self.heads, -1))

    def _latents(self, x: Tensor) -> Tensor:
        """``[..., L + R]``"""
        latent, shared = linear(x, self.latents).split_with_sizes([self.rank, self.rope], dim=-1)
        return torch.cat([rms_norm(latent, self.latent_norm, LATENT_EPS), shared], dim=-1)

    def _tiles(self, latents: Tensor, batch: PrefillBatch, pages: PagePool, last: bool) -> Iterator[KeyTile]:
        for tile in batch.past:
            first, *others = [pages.read(self.index, rows)[None] for rows in tile.rows]
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
