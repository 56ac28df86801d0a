"""``interference@k``: k keys that differ in one word, so that a state which blurs keys mixes their values up."""

from __future__ import annotations

from evalgate.tasks import names
from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Cast, Needs
from evalgate.tasks.families.multikey import Multikey
from evalgate.tasks.phrases import Slots


class Interference(Multikey):
    """As ``multikey``, but all keys share their noun."""

    name = "interference"
    rungs = range(3, 33)

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, 1, rung)

    def facts(self, rung: int, draw: Draw, cast: Cast) -> list[Slots]:
        keys = names.siblings(draw, cast.keys[0], rung)
        return [Slots(form=cast.forms[0], key=key, value=value) for key, value in zip(keys, cast.values, strict=True)]
