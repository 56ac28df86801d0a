"""``overwrite@k``: a key is set k times and the last setting counts; its band is that of the last setting."""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Plant, within


class Overwrite:
    """State that must be replaced, not only kept: one key per band, all of one form."""

    name = "overwrite"

    def check(self, rung: int | None) -> None:
        if rung is None or not 2 <= rung <= 32:
            raise ValueError(f"task 'overwrite' needs a rung from 2 to 32, such as 'overwrite@3'; found {rung}")

    def forms(self, rung: int, bands: Bands) -> int:
        return 1

    def keys(self, rung: int, bands: Bands) -> int:
        return len(bands)

    def plants(self, rung: int, bands: Bands, draw: Draw) -> list[Plant]:
        plants: list[Plant] = []
        for key, (band, (low, high)) in enumerate(bands.items()):
            last = within(draw, low, high)
            earlier = sorted(within(draw, 0.0, last) for _ in range(rung - 1))
            plants.extend(Plant(0, key, depth, band, False) for depth in earlier)
            plants.append(Plant(0, key, last, band, True))
        return plants

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return sum(rung if low < depth else rung - 1 for low, _ in bands.values())
