"""A session: one sequence of tokens, where its state and its latents are, and what came of its last token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from evalgate.engine.visibility import Visibility


@dataclass(slots=True)
class Session:
    """Handle to a live session; only the engine changes it."""

    id: int
    slot: int
    """Slot in the state pool."""
    tokens: int = 0
    """Tokens that the state has seen."""
    pages: list[int] = field(default_factory=list)
    """Pages of the page pool, in order; 0 stands for one that a window let go."""
    cached: int = 0
    """Latent rows in the pages; fewer than ``tokens`` once a hole was cut out."""
    floor: int = 0
    """First row that is still seen."""
    visibility: Visibility = field(default_factory=Visibility)
    last: Tensor | None = None
    """``[hidden]``: what the last layer made of the last token; None before the first."""
    released: bool = False


class SessionBytes(NamedTuple):
    """Bytes that one session holds, counted on its live tensors."""

    state: int
    conv: int
    kv: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.state + self.conv + self.kv
