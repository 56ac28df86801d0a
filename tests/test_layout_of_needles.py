"""Laying needles: moved only where rounding demands it, and never past one of the same key."""

from __future__ import annotations

from collections.abc import Iterator

from evalgate.tasks.layout import Wish, lay
from evalgate.tasks.suite import band_of

BANDS = {"front": (0.0, 0.5), "back": (0.5, 1.0)}
FILLER = [[0] * 9, [0] * 10, [0] * 11]


class Endless:
    """The same filler lines each time they are read."""

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield from FILLER


def test_earlier_settings_stay_before_the_last() -> None:
    """A last setting that is moved back over its band's edge takes the earlier ones of its key along."""
    line = [7] * 14
    for depth in (0.4999, 0.49, 0.999):
        band = band_of(depth, BANDS)
        wishes = [Wish(line, 600, depth - 0.0001, band, 2), Wish(line, 600, depth - 0.00005, band, 2)]
        wishes += [Wish(line, 600, depth, band, None)]
        laid = lay(wishes, [600], BANDS, Endless())
        assert laid.starts == sorted(laid.starts)
        assert band_of(laid.starts[2] / laid.ends[600], BANDS) == band
        assert laid.starts[2] + len(line) <= laid.ends[600]
        assert all(laid.tokens[start : start + 14] == line for start in laid.starts)
