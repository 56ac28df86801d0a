"""Figures of recurrent states ``[..., K, V]`` and of their decay; pure functions, in float64 where digits cancel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evalgate.kernels.kda_prefill import chunk_kda

LN2 = math.log(2.0)


def halvings(g: Tensor) -> Tensor:
    """How often each token halves each channel, at most once: ``min(-g / ln 2, 1)`` for log decays ``g <= 0``.

    What is gone cannot go again. Without the cap one token that wipes a channel (g = -40) would count as 58 halvings
    and hide that the channel holds everything until the next such token.
    """
    return (g.double() / -LN2).clamp(max=1.0)


def half_lives(rate: Tensor) -> list[float | None]:
    """Tokens until half is left at ``rate`` halvings a token, ``[K]``; None for a channel that does not decay."""
    return [1.0 / value if value else None for value in rate.tolist()]


def norm(state: Tensor) -> Tensor:
    """Frobenius norm, ``[..., K, V]`` -> ``[...]``."""
    found: Tensor = torch.linalg.vector_norm(state.double(), dim=(-2, -1))
    return found


def effective_rank(state: Tensor) -> Tensor:
    """Exponential of the entropy of the singular values over their sum; 0 for an empty state.

    Roy and Vetterli 2007, "The effective rank".
    """
    values = torch.linalg.svdvals(state.double())
    shares = values / values.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
    entropy: Tensor = torch.special.entr(shares).sum(dim=-1)
    return entropy.exp().masked_fill(values[..., 0] == 0, 0.0)


def ratio(part: Tensor, whole: Tensor) -> list[float | None]:
    """``part / whole`` of tensors ``[N]``; None where there is nothing to be a part of."""
    return [a / b if b else None for a, b in zip(part.tolist(), whole.tolist(), strict=True)]


def saturation(before: Tensor, after: Tensor, written: Tensor) -> list[float | None]:
    """1 - (after - before) / written, from norms ``[N]`` of the state around a stretch and of what it wrote.

    At least 0, since no step of the delta rule makes the older content larger; above 1 where the state shrinks.
    """
    return [None if share is None else 1.0 - share for share in ratio(after - before, written)]


def pooled(norms: Tensor) -> Tensor:
    """A layer's norm, on the scale of a head: root mean square over its heads, ``[..., H]`` -> ``[...]``."""
    return norms.square().mean(dim=-1).sqrt()


def stretch_effect(k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """What a stretch of tokens does to any state S: ``S -> transition @ S + written``.

    ``k``, ``g`` are ``[1, T, H, K]``, ``v`` is ``[1, T, H, V]``, ``beta`` is ``[1, T, H]`` as for `chunk_kda`; returns
    transition ``[1, H, K, K]`` (decay and overwriting) and written ``[1, H, K, V]`` (the state of the stretch alone).
    """
    # Columns of a state do not know each other, so one pass takes the identity and the empty state side by side.
    width = k.shape[-1]
    identity = torch.eye(width, dtype=k.dtype, device=k.device).expand(1, k.shape[2], width, width)
    start = torch.cat([identity, v.new_zeros(1, v.shape[2], width, v.shape[-1])], dim=-1)
    values = torch.cat([torch.zeros_like(k), v], dim=-1)
    # No query asks: zeros of the keys' shape.
    end = chunk_kda(torch.zeros_like(k), k, values, g, beta, start).final_state
    return end[..., :width], end[..., width:]
