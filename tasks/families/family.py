"""What every needle family does: say how many needles it needs, and draw their depths."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from evalgate.tasks.draw import Draw

Bands = dict[str, tuple[float, float]]


class Plant(NamedTuple):
    """One needle to lay: which of the task's forms and keys it states, how deep, and whether it is asked for."""

    form: int
    key: int
    depth: float
    band: str
    asked: bool


class Family(Protocol):
    """A kind of task.  Forms and keys are counted from 0 within one task at one length."""

    name: str

    def check(self, rung: int | None) -> None:
        """Raise ValueError for a rung that the family does not have (None: no rung was given)."""

    def forms(self, rung: int, bands: Bands) -> int:
        """How many needle forms the task uses."""

    def keys(self, rung: int, bands: Bands) -> int:
        """How many keys the task uses."""

    def plants(self, rung: int, bands: Bands, draw: Draw) -> list[Plant]:
        """The needles of one haystack; exactly one is asked for in each band."""

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        """The most needles that any seed can lay at a depth under ``depth``."""


def within(draw: Draw, low: float, high: float) -> float:
    """A depth drawn uniformly from [low, high)."""
    return low + (high - low) * draw.unit()
