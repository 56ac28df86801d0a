"""Typed access to one object of a ``config.json``, with errors that name the file and the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from evalgate.errors import CheckpointError

T = TypeVar("T")


class Reader:
    """One JSON object; a key whose value is null is as good as missing. Every method raises CheckpointError."""

    def __init__(self, body: Mapping[str, object], where: str) -> None:
        self._body = body
        self.where = where

    def has(self, key: str) -> bool:
        """Whether the key is there with a value."""
        return self._body.get(key) is not None

    def required(self, key: str, kind: type[T]) -> T:
        """A value that must be there."""
        if not self.has(key):
            raise CheckpointError(f"{self.where}: {key} is missing")
        return self._typed(key, kind)

    def optional(self, key: str, kind: type[T], default: T | None) -> T:
        """A value, or ``default``."""
        return self._typed(key, kind) if self.has(key) else default  # type: ignore[return-value]  # None is asked for as such

    def positive(self, key: str) -> int:
        """A whole number from 1 up that must be there."""
        value = self.required(key, int)
        if value < 1:
            raise CheckpointError(f"{self.where}: {key} is {value}, expected at least 1")
        return value

    def names(self, key: str, allowed: set[str], count: int) -> list[str]:
        """A list of ``count`` names out of ``allowed`` that must be there."""
        found = self.required(key, list)
        if len(found) != count or not all(isinstance(name, str) and name in allowed for name in found):
            raise CheckpointError(f"{self.where}: {key} is {found}, expected {count} of {sorted(allowed)}")
        return found

    def integers(self, key: str) -> tuple[int, ...]:
        """Whole numbers: a list of them, one by itself, or none where the key is missing."""
        value = self._body.get(key)
        if value is None:
            return ()
        found = value if isinstance(value, list) else [value]
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in found):
            raise CheckpointError(f"{self.where}: {key} is {value!r}, expected whole numbers")
        return tuple(found)

    def section(self, key: str) -> Reader | None:
        """The object under a key; None where the key is missing."""
        if not self.has(key):
            return None
        return Reader(self.required(key, dict), f"{self.where} {key}")

    def _typed(self, key: str, kind: type[T]) -> T:
        value = self._body[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(f"{self.where}: {key} is {value!r}, expected {kind.__name__}")
        return value
