"""What one forward pass works on: tokens, and where each row's state and latents lie."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from evalgate.engine.page_pool import Rows


class PastTile(NamedTuple):
    """A run of cached latents before a stretch: one entry in ``rows`` that all share, or one for each row."""

    rows: list[Rows]
    visible: Tensor | None
    """bool ``[T, S]``; None: every query sees all of it."""


class PrefillBatch(NamedTuple):
    """B stretches of up to T tokens that start at the same position."""

    tokens: Tensor
    """int64 ``[B, T]``, padded at the end."""
    start: int
    """Tokens before the stretch."""
    lengths: Tensor | None
    """int64 ``[B]`` real tokens of each row; None: no row is padded."""
    real: Tensor | None
    """bool ``[B, T]``; None as above."""
    slots: Tensor
    """int64 ``[B]``"""
    targets: Rows
    """Where the latents of the real tokens go, row after row."""
    past: list[PastTile]
    own_visible: Tensor | None
    """bool ``[T, T]``; None: causal."""

    def last(self, x: Tensor) -> Tensor:
        """Of ``[B, T, ...]`` each row's last real token, ``[B, 1, ...]``."""
        if self.lengths is None:
            return x[:, -1:]
        return x[torch.arange(len(x)), self.lengths - 1][:, None]

    def seen_last(self, visible: Tensor | None) -> Tensor | None:
        """What the last real tokens see, bool ``[B, 1, S]``, of what all see, bool ``[T, S]``; None: all of it."""
        return None if visible is None else self.last(visible.expand(len(self.tokens), -1, -1))


class DecodeBatch(NamedTuple):
    """One token for each of B sessions of unequal length."""

    tokens: Tensor
    """int64 ``[B]``"""
    slots: Tensor
    """int64 ``[B]``"""
    targets: Rows
    """Where the latents of the tokens go."""
    shared: Rows | None
    """Cached latents that all rows see."""
    rows: list[Rows]
    """The other cached latents of each row, its new one included."""
