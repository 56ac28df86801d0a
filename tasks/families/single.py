"""``single``: one needle in each band, each of a form of its own."""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Plant, within


class Single:
    """A lone fact: the easiest needle, and the floor of every other."""

    name = "single"

    def check(self, rung: int | None) -> None:
        if rung is not None:
            raise ValueError(f"task 'single' has no rungs, found @{rung}; write 'single'")

    def forms(self, rung: int, bands: Bands) -> int:
        return len(bands)

    def keys(self, rung: int, bands: Bands) -> int:
        return len(bands)

    def plants(self, rung: int, bands: Bands, draw: Draw) -> list[Plant]:
        return [Plant(i, i, within(draw, lo, hi), band, True) for i, (band, (lo, hi)) in enumerate(bands.items())]

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return sum(low < depth for low, _ in bands.values())
