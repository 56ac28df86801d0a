"""``multikey@k``: k keys of one form, spread over the bands; one of each band is asked for."""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Plant, within


class Multikey:
    """Rivals of the same shape: the right key must be told from k - 1 others."""

    name = "multikey"

    def check(self, rung: int | None) -> None:
        if rung is None or not 3 <= rung <= 128:
            raise ValueError(f"task 'multikey' needs a rung from 3 to 128, such as 'multikey@8'; found {rung}")

    def forms(self, rung: int, bands: Bands) -> int:
        return 1

    def keys(self, rung: int, bands: Bands) -> int:
        return rung

    def plants(self, rung: int, bands: Bands, draw: Draw) -> list[Plant]:
        names = draw.permutation(list(bands))
        plants = []
        for key in range(rung):
            band = names[key % len(names)]
            plants.append(Plant(0, key, within(draw, *bands[band]), band, key < len(names)))
        return plants

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        per_band = -(-rung // len(bands))
        return min(rung, per_band * sum(low < depth for low, _ in bands.values()))
