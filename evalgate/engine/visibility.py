"""Which cached tokens a query may see, beyond causality: a sliding window, or a hole in the middle of a context.

Positions are absolute token positions from prompt token 0.
Until the hole is cut out of a fork's cache, row i of a cache holds the latent of token i.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NEVER = 2**62
"""A window that hides nothing, or a position that no query reaches."""


class ContextSpan(NamedTuple):
    """The tokens [start, end) that a question is about."""

    start: int
    end: int


class Visibility(NamedTuple):
    """What queries see; the default hides nothing."""

    window: int | None = None
    """A query sees so many tokens up to itself. Past ``context_end`` the window stands still: the last N stay."""
    context_end: int | None = None
    hole: range | None = None
    """Tokens that no query at or after ``context_end`` sees."""

    def floor(self, position: int) -> int:
        """The first token that a query at ``position`` or later can ever see."""
        if self.window is None:
            return 0
        edge = position + 1 if self.context_end is None else min(position + 1, self.context_end)
        return max(0, edge - self.window)

    def rules(self) -> tuple[int, int, int, int] | None:
        """Window, end of the context, start and stop of the hole, as plain numbers; None where nothing is hidden.

        Key s is hidden from query t where ``s < min(t + 1, end) - window``, or where t is at or after ``end`` and s in
        the hole.
        """
        if self.window is None and self.hole is None:
            return None
        end = NEVER if self.context_end is None else self.context_end
        hole = range(0) if self.hole is None else self.hole
        return NEVER if self.window is None else self.window, end, hole.start, hole.stop

    def mask(self, queries: range, keys: range) -> Tensor | None:
        """Mask ``[T, S]`` (bool), causality included; None where nothing but causality hides a key."""
        slides = self.window is not None and self.floor(queries.stop - 1) > keys.start
        holed = self.hole is not None and self.context_end is not None and queries.stop > self.context_end
        if not slides and not (holed and self.hole is not None and _overlap(self.hole, keys)):
            return None
        q = torch.arange(queries.start, queries.stop)[:, None]
        k = torch.arange(keys.start, keys.stop)[None, :]
        visible = k <= q
        if self.window is not None:
            edge = q + 1 if self.context_end is None else (q + 1).clamp(max=self.context_end)
            visible &= k >= edge - self.window
        if self.hole is not None and self.context_end is not None:
            visible &= (q < self.context_end) | (k < self.hole.start) | (k >= self.hole.stop)
        return visible


def middle_hole(context: ContextSpan, keep: float) -> range:
    """The hole that leaves the first and the last ``keep / 2`` of a context's tokens, centred at depth 0.5."""
    kept = round((context.end - context.start) * keep)
    return range(context.start + (kept + 1) // 2, context.end - kept // 2)


def _overlap(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop
