"""Fixed-size state of the linear-attention layers: one slot a session, recurrent and convolution state together.

Slot 0 is scratch and never handed out.  A slot is zeroed when it is allocated, copied when a session forks, and
carries a tag (owner, tokens) that is checked before each use, so that a stale slot is an error and not an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from evalgate.engine.config import ModelConfig
from evalgate.errors import DoesNotFitError
from evalgate.kernels.state_codec import TensorSpec

FREE = -1
"""Owner of a slot that nobody holds."""


class Tag(NamedTuple):
    """Who holds a slot, and how many tokens its state has seen."""

    owner: int
    tokens: int


class StatePool:
    """``recurrent`` is ``[layers, slots, H, K, V]``, ``conv`` is ``[layers, slots, W - 1, 3 H K]``.

    ``errors`` are what the last compression of each state lost, ``[layers, slots, ...]`` as a codec specifies for
    ``recurrent``; none where none is kept.
    """

    def __init__(
        self,
        config: ModelConfig,
        slots: int,
        *,
        state_dtype: torch.dtype,
        conv_dtype: torch.dtype,
        error_specs: Sequence[TensorSpec] = (),
        device: torch.device | None = None,
        poison: bool,
    ) -> None:
        shape = state_shape(config)
        self.recurrent = torch.zeros(shape[0], slots + 1, *shape[1:], dtype=state_dtype, device=device)
        channels = 3 * config.linear_heads * config.linear_width
        tail = (config.conv_taps - 1, channels)
        self.conv = torch.zeros(config.kda_layers, slots + 1, *tail, dtype=conv_dtype, device=device)
        self.errors = tuple(
            torch.zeros(spec.shape[0], slots + 1, *spec.shape[1:], dtype=spec.dtype, device=device)
            for spec in error_specs
        )
        self._tags = [Tag(FREE, 0)] * (slots + 1)
        self._free = list(range(slots, 0, -1))
        self._poison = poison

    @property
    def size(self) -> int:
        """Slots, free or taken."""
        return len(self._tags) - 1

    def tag(self, slot: int) -> Tag:
        """Who holds a slot, and how many tokens its state has seen."""
        return self._tags[slot]

    @property
    def free(self) -> int:
        """Slots that may still be allocated."""
        return len(self._free)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return sum(part.nbytes for part in self.parts(0))

    def parts(self, slot: int) -> tuple[Tensor, ...]:
        """Views of everything that a slot holds, ``[layers, ...]`` each: recurrent, conv, errors."""
        return tuple(part[:, slot] for part in (self.recurrent, self.conv, *self.errors))

    def allocate(self, owner: int) -> int:
        """A zeroed slot for ``owner``; raises DoesNotFitError when all are taken."""
        if not self._free:
            raise DoesNotFitError(f"all {len(self._tags) - 1} state slots are taken; release a session first")
        slot = self._free.pop()
        assert self._tags[slot].owner == FREE, f"slot {slot} is free and yet owned by {self._tags[slot].owner}"
        for part in self.parts(slot):
            part.zero_()
        self._tags[slot] = Tag(owner, 0)
        return slot

    def copy(self, source: int, target: int) -> None:
        """Copy state and token count into a slot that was allocated for a fork."""
        for new, old in zip(self.parts(target), self.parts(source), strict=True):
            new.copy_(old)
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
            fill_with_nan(self.parts(slot))
        self._tags[slot] = Tag(FREE, 0)
        self._free.append(slot)


def state_shape(config: ModelConfig) -> tuple[int, int, int, int]:
    """``[layers, H, K, V]`` of one slot's recurrent state."""
    return config.kda_layers, config.linear_heads, config.linear_width, config.linear_width


def fill_with_nan(parts: Sequence[Tensor]) -> None:
    """Poison what was freed. Codes cannot say NaN; the scales beside them can."""
    for part in parts:
        if part.is_floating_point():
            part.fill_(torch.nan)
