"""Fixed-size state of the linear-attention layers: one slot a session, recurrent and convolution state together.

Slot 0 is scratch and never handed out.  A slot is zeroed when it is allocated, copied when a session forks, and
carries a tag (owner, tokens) that is checked before each use, so that a stale slot is an error and not an answer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from evalgate.engine.config import ModelConfig
from evalgate.errors import DoesNotFitError

FREE = -1
"""Owner of a slot that nobody holds."""


class Tag(NamedTuple):
    """Who holds a slot, and how many tokens its state has seen."""

    owner: int
    tokens: int


class StatePool:
    """``recurrent`` is ``[layers, slots, H, K, V]``, ``conv`` is ``[layers, slots, W - 1, 3 H K]``."""

    def __init__(
        self, config: ModelConfig, slots: int, *, state_dtype: torch.dtype, conv_dtype: torch.dtype, poison: bool
    ) -> None:
        layers, heads, width = config.kda_layers, config.linear_heads, config.linear_width
        self.recurrent = torch.zeros(layers, slots + 1, heads, width, width, dtype=state_dtype)
        self.conv = torch.zeros(layers, slots + 1, config.conv_taps - 1, 3 * heads * width, dtype=conv_dtype)
        self._tags = [Tag(FREE, 0)] * (slots + 1)
        self._free = list(range(slots, 0, -1))
        self._poison = poison

    @property
    def free(self) -> int:
        """Slots that may still be allocated."""
        return len(self._free)

    @property
    def slot_bytes(self) -> tuple[int, int]:
        """Bytes of one slot: recurrent, conv."""
        return self.recurrent[:, 0].nbytes, self.conv[:, 0].nbytes

    def allocate(self, owner: int) -> int:
        """A zeroed slot for ``owner``; raises DoesNotFitError when all are taken."""
        if not self._free:
            raise DoesNotFitError(f"all {len(self._tags) - 1} state slots are taken; release a session first")
        slot = self._free.pop()
        assert self._tags[slot].owner == FREE, f"slot {slot} is free and yet owned by {self._tags[slot].owner}"
        self.recurrent[:, slot] = 0
        self.conv[:, slot] = 0
        self._tags[slot] = Tag(owner, 0)
        return slot

    def copy(self, source: int, target: int) -> None:
        """Copy state and token count into a slot that was allocated for a fork."""
        self.recurrent[:, target] = self.recurrent[:, source]
        self.conv[:, target] = self.conv[:, source]
        self._tags[target] = self._tags[target]._replace(tokens=self._tags[source].tokens)

    def check(self, slot: int, owner: int, tokens: int) -> None:
        """Assert that the slot is the owner's and has seen exactly ``tokens`` tokens."""
        assert self._tags[slot] == (owner, tokens), (
            f"slot {slot} holds {self._tags[slot]}, session {owner} expected {tokens} tokens"
        )

    def advance(self, slot: int, tokens: int) -> None:
        """Record that the state of the slot has seen ``tokens`` more tokens."""
        tag = self._tags[slot]
        self._tags[slot] = tag._replace(tokens=tag.tokens + tokens)

    def release(self, slot: int, owner: int) -> None:
        """Give a slot back."""
        assert self._tags[slot].owner == owner, f"slot {slot} belongs to {self._tags[slot].owner}, not to {owner}"
        if self._poison:
            self.recurrent[:, slot] = torch.nan
            self.conv[:, slot] = torch.nan
        self._tags[slot] = Tag(FREE, 0)
        self._free.append(slot)
