"""Multi-head latent attention as a layer: projections, and the latents it caches, around the core that attends."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from evalgate.engine.batch import DecodeBatch, PrefillBatch
from evalgate.engine.config import ModelConfig
from evalgate.engine.mla_core import MlaCore, MlaParameters
from evalgate.engine.page_pool import PagePool
from evalgate.engine.weights import Weights
from evalgate.kernels.mla_prefill import MlaWeights
from evalgate.kernels.rms_norm import rms_norm

LATENT_EPS = 1e-6
"""The norms of the low-rank parts have this epsilon whatever ``rms_norm_eps`` says."""


class MlaLayer:
    """Weights of one layer, and its place ``index`` in the page pool."""

    def __init__(
        self, config: ModelConfig, weights: Weights, at: str, index: int, dtype: torch.dtype, core: MlaCore
    ) -> None:
        self.index, self.core = index, core
        self.heads, self.rank, self.rope = config.heads, config.kv_rank, config.rope
        query = "q_proj" if config.q_rank is None else "q_a_proj"
        self.query = weights.read(f"{at}.{query}.weight", dtype=dtype)
        self.latents = weights.read(f"{at}.kv_a_proj_with_mqa.weight", dtype=dtype)
        self.low_rank_query: tuple[Tensor, Tensor] | None = None
        if config.q_rank is not None:
            norm = weights.read(f"{at}.q_a_layernorm.weight", dtype=dtype)
            self.low_rank_query = (norm, weights.read(f"{at}.q_b_proj.weight", dtype=dtype))
        self.latent_norm = weights.read(f"{at}.kv_a_layernorm.weight", dtype=dtype)
        expand = torch.unflatten(weights.read(f"{at}.kv_b_proj.weight", dtype=dtype), 0, (config.heads, -1))
        halves = MlaWeights(expand[:, : config.nope], expand[:, config.nope :])
        self.parameters = MlaParameters(index, expand, halves, scale=(config.nope + config.rope) ** -0.5)
        self.output = weights.read(f"{at}.o_proj.weight", dtype=dtype)

    def prefill(self, x: Tensor, batch: PrefillBatch, pages: PagePool, *, last: bool = False) -> Tensor:
        """``[B, T, hidden]`` -> the same, or ``[B, 1, hidden]``: only each row's ``last`` token; caches all latents."""
        q, latents = self._queries(batch.last(x) if last else x), self._latents(x)
        real = latents.flatten(0, 1) if batch.real is None else latents[batch.real]
        pages.write(self.index, batch.targets, real)
        return linear(self.core.prefill(self.parameters, q, latents, batch, pages).flatten(-2), self.output)

    def decode(self, x: Tensor, batch: DecodeBatch, pages: PagePool) -> Tensor:
        """One token for each row, ``[B, hidden]`` -> the same; caches the latents."""
        q, latents = self._queries(x), self._latents(x)
        pages.write(self.index, batch.targets, latents)
        return linear(self.core.decode(self.parameters, q, batch, pages).flatten(-2), self.output)

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
