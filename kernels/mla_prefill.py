"""Multi-head latent attention of a stretch of queries over cached latents, tile by tile.

The cache holds one latent ``c_s`` (width L) and one shared key part ``r_s`` (width R, no rotary: NoPE) for each token.
Head h expands them to the key ``[W_k c_s ; r_s]`` and the value ``W_v c_s``, and attends as usual.
Only one tile of keys is ever expanded; the parts are joined by their log sums of exponentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    """bool ``[T, S]``, or ``[B, T, S]`` where rows differ: query t sees key s; None: all of it (below ``causal``)."""
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

    A tile that all rows share is read once, and the queries of all rows attend to it together.  Memory does not grow
    with the number of tiles.  Either the keys are expanded or the queries absorb their expansion (see mla_decode),
    whichever takes fewer multiplications.
    """
    batch, length, heads, _ = q.shape
    form = (_absorbed if absorbing(q.shape, weights) else _expanded)(q.transpose(1, 2), weights)

    def part(tile: KeyTile) -> Part:
        keys, values = form.expand(tile.latents)
        if tile.latents.shape[0] == batch:
            return _attend(form.queries, keys, values, scale, tile)
        together = form.queries.transpose(0, 1).reshape(1, heads, batch * length, -1)
        visible = None if tile.visible is None else tile.visible.expand(batch, -1, -1).flatten(0, 1)
        found = _attend(together, keys, values, scale, tile._replace(visible=visible))
        return Part(*(torch.unflatten(x[0], 1, (batch, length)).transpose(0, 1) for x in found))

    return form.finish(merge(map(part, tiles)).output).transpose(1, 2)


def absorbing(shape: Sequence[int], weights: MlaWeights) -> bool:
    """Whether queries ``[B, T, H, N + R]`` attend over latents in fewer multiplications than over expanded keys."""
    batch, length, _, width = shape
    (_, nope, latent), value = weights.key.shape, weights.value.shape[1]
    wider = latent + width - nope - max(width, value)
    return 2 * batch * length * wider < latent * (nope + value)


class _Form(NamedTuple):
    """Queries ``[B, H, T, C]``, how latents ``[B, S, L + R]`` become keys and values ``[B, H, S, C]`` for them, and how
    their means become the values' ``[B, H, T, V]``.
    """

    queries: Tensor
    expand: Callable[[Tensor], tuple[Tensor, Tensor]]
    finish: Callable[[Tensor], Tensor]


def _absorbed(q: Tensor, weights: MlaWeights) -> _Form:
    heads, nope, latent = weights.key.shape

    def expand(latents: Tensor) -> tuple[Tensor, Tensor]:
        rows = latents[:, None].expand(-1, heads, -1, -1)
        return rows, rows

    queries = torch.cat([q[..., :nope] @ weights.key, q[..., nope:]], dim=-1)
    return _Form(queries, expand, lambda means: means[..., :latent] @ weights.value.transpose(1, 2))


def _expanded(q: Tensor, weights: MlaWeights) -> _Form:
    heads, nope, latent = weights.key.shape
    value, width = weights.value.shape[1], q.shape[-1]
    # The fused operation wants keys and values of one width; zeros add nothing to a score or a mean.
    common = max(width, value)
    joined = torch.cat([weights.key, weights.value], dim=1).flatten(0, 1)

    def expand(latents: Tensor) -> tuple[Tensor, Tensor]:
        expanded = torch.unflatten(linear(latents[..., :latent], joined), -1, (heads, -1)).transpose(1, 2)
        keys, values = (expanded.new_empty(*expanded.shape[:-1], common) for _ in range(2))
        keys[..., :nope], keys[..., nope:width], keys[..., width:] = (
            expanded[..., :nope],
            latents[:, None, :, latent:],
            0,
        )
        values[..., :value], values[..., value:] = expanded[..., nope:], 0
        return keys, values

    queries = torch.nn.functional.pad(q, (0, common - width)) if common > width else q
    return _Form(queries, expand, lambda means: means[..., :value])


def _attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, tile: KeyTile) -> Part:
    """One tile for ``[B, H, T, C]`` queries."""
    bias = hidden = None
    if tile.visible is not None:
        # [T, S] or [B, T, S], for all heads.
        hidden = ~tile.visible.unsqueeze(-3)
        bias = torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, -torch.inf)
        bias = bias.view(-1, 1, *bias.shape[-2:])
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - the only CPU attention that also returns its log sums
        q, keys, values, 0.0, tile.causal, attn_mask=bias, scale=scale
    )
    if hidden is not None:
        # For a query that sees none of the tile the operation returns 0, which would claim a sum of 1.
        lse = lse.masked_fill(hidden.all(dim=-1), -torch.inf)
    return Part(output, lse)
