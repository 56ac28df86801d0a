"""``latent@k``: no word of the question stands in the needle; that a city lies in a country must be known.

After the idea of NoLiMa (Modarressi et al., 2025), in words of its own.
"""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Cast, Needs
from evalgate.tasks.families.multikey import Multikey
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Latent(Multikey):
    """k keys, each seen in a city of another country; who was seen in a country is asked."""

    name = "latent"
    rungs = range(3, 33)
    asks_one_number = False
    fact, ask = "seen", "ask_seen"

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, rung, 0)

    def facts(self, rung: int, draw: Draw, cast: Cast) -> list[Slots]:
        phrases = cast.phrases
        regions = draw.permutation(range(len(phrases.regions)))
        facts = []
        for key, region in zip(cast.keys, regions, strict=False):
            lying = [i for i, (_, where) in enumerate(phrases.places) if where == phrases.regions[region]]
            facts.append(Slots(form=cast.forms[0], key=key, place=draw.choice(lying), region=region))
        return facts

    def wanted(self, fact: Slots, cast: Cast) -> Wanted:
        return Wanted("key", (cast.phrases.name(fact.key),))
