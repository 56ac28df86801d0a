"""A deterministic source of random draws, the same on every machine and every Python.

SplitMix64 (Steele, Lea & Flood 2014) seeded by sha256; the standard library promises no stable sequence for
``shuffle`` or ``choice``, and a suite must have the same bytes for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def _mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def scatter(number: int) -> int:
    """64 bits that look drawn at random, always the same for ``number``."""
    return _mixed((number + _STEP) & _MASK)


class Draw:
    """A stream of draws named by its parts; the same parts give the same stream."""

    def __init__(self, *name: str | int) -> None:
        digest = hashlib.sha256("\x1f".join(str(part) for part in name).encode()).digest()
        self._state = int.from_bytes(digest[:8], "little")

    def bits(self) -> int:
        """64 uniform bits."""
        self._state = (self._state + _STEP) & _MASK
        return _mixed(self._state)

    def below(self, n: int) -> int:
        """A uniform integer in ``[0, n)`` (multiply-shift; the bias is under n / 2**64)."""
        return (self.bits() * n) >> 64

    def unit(self) -> float:
        """A uniform float in ``[0, 1)`` with 53 bits."""
        return (self.bits() >> 11) / (1 << 53)

    def choice(self, items: Sequence[T]) -> T:
        """One of ``items``, uniformly."""
        return items[self.below(len(items))]

    def permutation(self, items: Sequence[T]) -> list[T]:
        """All of ``items`` in uniform random order (Fisher-Yates)."""
        out = list(items)
        for i in range(len(out) - 1, 0, -1):
            j = self.below(i + 1)
            out[i], out[j] = out[j], out[i]
        return out
