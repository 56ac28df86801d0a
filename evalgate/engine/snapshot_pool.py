"""Stored states: fixed slots with all that a live slot holds, its recurrent state in a form of its own.

Slot 0 is scratch and never handed out; every slot has a tag (owner, tokens), as in the pool of live states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evalgate.engine.state_pool import FREE, StatePool, Tag, fill_with_nan
from evalgate.kernels.state_codec import Encoded, StateForm


class SnapshotPool:
    """``slots`` snapshots of slots of ``live``, whose recurrent states are stored in ``form``."""

    def __init__(self, live: StatePool, slots: int, form: StateForm, *, poison: bool) -> None:
        self._live, self._form, self._poison = live, form, poison
        recurrent, *others = live.parts(0)
        specs = form.specs(tuple(recurrent.shape), recurrent.dtype)
        self._states = [recurrent.new_zeros(slots + 1, *spec.shape, dtype=spec.dtype) for spec in specs]
        self._others = [part.new_zeros(slots + 1, *part.shape) for part in others]
        self._tags = [Tag(FREE, 0)] * (slots + 1)
        self._free = list(range(slots, 0, -1))

    @property
    def size(self) -> int:
        """Slots, free or taken."""
        return len(self._tags) - 1

    @property
    def free(self) -> int:
        """Slots that may still be taken."""
        return len(self._free)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one snapshot."""
        return sum(part.nbytes for part in self._parts(0))

    @property
    def dtype(self) -> torch.dtype:
        """What the numbers of a state are stored in."""
        return self._states[0].dtype

    def tag(self, slot: int) -> Tag:
        """Who holds a slot and at how many tokens it stands."""
        return self._tags[slot]

    def take(self, live_slot: int, owner: int, tokens: int) -> int:
        """Copy a live slot into a free one; there must be one."""
        slot = self._free.pop()
        assert self._tags[slot].owner == FREE, f"snapshot {slot} is free and yet owned by {self._tags[slot].owner}"
        recurrent, *others = self._live.parts(live_slot)
        for part, value in zip(self._parts(slot), (*self._form.encode(recurrent).tensors, *others), strict=True):
            part.copy_(value)
        self._tags[slot] = Tag(owner, tokens)
        return slot

    def restore(self, slot: int, owner: int, tokens: int, live_slot: int) -> None:
        """Copy a snapshot into a live slot that was just allocated; the snapshot stays as it is."""
        assert self._tags[slot] == (owner, tokens), (
            f"snapshot {slot} holds {self._tags[slot]}, prefix {owner} expected {tokens} tokens"
        )
        encoded = Encoded(tuple(part[slot] for part in self._states))
        recurrent, *others = self._live.parts(live_slot)
        recurrent.copy_(self._form.decode(encoded, recurrent.dtype))
        for live, stored in zip(others, self._others, strict=True):
            live.copy_(stored[slot])
        self._live.advance(live_slot, tokens)

    def release(self, slot: int, owner: int) -> None:
        """Give a slot back."""
        assert self._tags[slot].owner == owner, f"snapshot {slot} belongs to {self._tags[slot].owner}, not to {owner}"
        if self._poison:
            fill_with_nan(self._parts(slot))
        self._tags[slot] = Tag(FREE, 0)
        self._free.append(slot)

    def _parts(self, slot: int) -> list[Tensor]:
        return [part[slot] for part in (*self._states, *self._others)]
