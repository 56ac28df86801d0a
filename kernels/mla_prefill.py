"""Multi-head latent attention of a stretch of queries over cached latents, tile by tile.

The cache holds one latent ``c_s`` (width L) and one shared key part ``r_s`` (width R, no rotary: NoPE) for each token.
Head h expands them to the key ``[W_k c_s ; r_s]`` and the value ``W_v c_s``, and attends as usual.
Only one tile of keys is ever expanded; the parts are joined by their log sums of exponentials.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from evalgate.kernels.lse_merge import Part, merge


class MlaWeights(NamedTuple):
    """``key`` is ``[H, N, L]`` and ``value`` is ``[H, V, L]``: how each head expands a latent."""

    key: Tensor
    value: Tensor

    @property
    def latent(self) -> int:
        """L, the width of a latent without its shared key part."""
        return self.key.shape[-1]


class KeyTile(NamedTuple):
    """Cached latents of a run of S tokens, and which queries see them."""

    latents: Tensor
    """``[B, S, L + R]``, or ``[1, S, L + R]`` where all rows share the run."""
    visible: Tensor | None = None
    """bool ``[T, S]``: query t sees key s; None: all of it (below ``causal``)."""
    causal: bool = False
    """The run is the queries' own (S = T): query t sees key s only where s <= t."""


def reference_mla(q: Tensor, latents: Tensor, weights: MlaWeights, scale: float, visible: Tensor) -> Tensor:
    """All keys expanded at once, exactly as above.

    ``q`` is ``[B, T, H, N + R]``, ``latents`` is ``[B, S, L + R]``, ``visible`` is bool ``[T, S]``; the result is
    ``[B, T, H, V]``.
    """
    width = weights.latent
    nope = torch.einsum("hnl,bsl->bshn", weights.key, latents[..., :width])
    shared = latents[:, :, None, width:].expand(-1, -1, nope.shape[2], -1)
    keys = torch.cat([nope, shared], dim=-1)
    values = torch.einsum("hvl,bsl->bshv", weights.value, latents[..., :width])
    scores = torch.einsum("bthd,bshd->bhts", q, keys) * scale
    scores = scores.masked_fill(~visible, -torch.inf)
    return torch.einsum("bhts,bshv->bthv", scores.softmax(dim=-1), values)


def mla_prefill(q: Tensor, tiles: Iterable[KeyTile], weights: MlaWeights, scale: float) -> Tensor:
    """The same over tiles that together hold every key; ``q`` is ``[B, T, H, N + R]``, the result ``[B, T, H, V]``.

    A tile that all rows share is expanded once, and the queries of all rows attend to it together.  Memory does not
    grow with the number of tiles.
    """
    batch, length, heads, _ = q.shape
    width = weights.value.shape[1]
    # The fused operation wants keys and values of one width; zeros add nothing to a score or a mean.
    common = max(q.shape[-1], width)
    joined = torch.cat([weights.key, weights.value], dim=1).flatten(0, 1)
    by_row = q.transpose(1, 2)
    if common > q.shape[-1]:
        by_row = torch.nn.functional.pad(by_row, (0, common - q.shape[-1]))

    def part(tile: KeyTile) -> Part:
        keys, values = _expand(tile.latents, joined, weights, common)
        if tile.latents.shape[0] == batch:
            return _attend(by_row, keys, values, scale, tile, width)
        together = by_row.transpose(0, 1).reshape(1, heads, batch * length, -1)
        visible = None if tile.visible is None else tile.visible.repeat(batch, 1)
        found = _attend(together, keys, values, scale, tile._replace(visible=visible), width)
        return Part(*(torch.unflatten(x[0], 1, (batch, length)).transpose(0, 1) for x in found))

    return merge(map(part, tiles)).output.transpose(1, 2)


def _expand(latents: Tensor, joined: Tensor, weights: MlaWeights, common: int) -> tuple[Tensor, Tensor]:
    """``[B, S, L + R]`` -> keys and values ``[B, H, S, common]``, filled up with zeros; ``joined`` is both weights."""
    heads, nope, latent = weights.key.shape
    expanded = torch.unflatten(linear(latents[..., :latent], joined), -1, (heads, -1)).transpose(1, 2)
    keys, values = (expanded.new_empty(*expanded.shape[:-1], common) for _ in range(2))
    width, value = nope + latents.shape[-1] - latent, expanded.shape[-1] - nope
    keys[..., :nope] = expanded[..., :nope]
    keys[..., nope:width] = latents[:, None, :, latent:]
    keys[..., width:] = 0
    values[..., :value] = expanded[..., nope:]
    values[..., value:] = 0
    return keys, values


def _attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, tile: KeyTile, width: int) -> Part:
    """One tile for ``[B, H, T, common]`` queries; ``width`` of the values' channels are real."""
    bias = None
    if tile.visible is not None:
        bias = torch.zeros_like(tile.visible, dtype=q.dtype).masked_fill(~tile.visible, -torch.inf)[None, None]
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - the only CPU attention that also returns its log sums
        q, keys, values, 0.0, tile.causal, attn_mask=bias, scale=scale
    )
    if tile.visible is not None:
        # For a query that sees none of the tile the operation returns 0, which would claim a sum of 1.
        lse = lse.masked_fill(~tile.visible.any(dim=-1), -torch.inf)
    return Part(output[..., :width], lse)
