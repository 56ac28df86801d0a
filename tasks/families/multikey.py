"""``multikey@k``: k keys of one form, spread over the bands; one of each band is asked for.

``load@k`` is the same with k as high as the context holds: how many keys a state can carry, as a curve.
"""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import (
    Bands,
    Cast,
    Family,
    Line,
    Needs,
    Query,
    Script,
    Spot,
    Statement,
    most_spread,
    spread,
)
from evalgate.tasks.names import ValueKind
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Multikey(Family):
    """Rivals of the same shape: the right key must be told from k - 1 others."""

    name = "multikey"
    rungs = range(3, 129)
    kind: ValueKind = "number"
    fact, ask = "fact", "ask"
    framed = True

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, rung, rung, self.kind)

    def facts(self, rung: int, draw: Draw, cast: Cast) -> list[Slots]:
        """What the k statements say."""
        return [
            Slots(form=cast.forms[0], key=key, value=value, kind=self.kind)
            for key, value in zip(cast.keys[:rung], cast.values, strict=True)
        ]

    def tell(self, fact: Slots, draw: Draw, cast: Cast) -> str:
        """The statement of ``fact``."""
        return cast.phrases.say(self.fact, fact)

    def wanted(self, fact: Slots, cast: Cast) -> Wanted:
        """The answer to the question about ``fact``."""
        return Wanted(self.kind, (fact.value,))

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        spots = spread(rung, bands, draw, cast)
        facts = self.facts(rung, draw, cast)
        statements = [
            Statement(self.tell(fact, draw, cast), spot.depth, spot.band, framed=self.framed)
            for spot, fact in zip(spots, facts, strict=True)
        ]
        return Script(statements, self.queries(spots, facts, cast))

    def queries(self, spots: list[Spot], facts: list[Slots], cast: Cast) -> list[Query]:
        """The question about one fact of each band."""
        return [
            Query(spot.band, cast.phrases.say(self.ask, fact), self.wanted(fact, cast), (i,))
            for i, (spot, fact) in enumerate(zip(spots, facts, strict=True))
            if spot.asked
        ]

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return most_spread(rung, bands, depth)

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        slots = Slots(kind=self.kind)
        return [Line(self.fact, slots)], [Line(self.ask, slots)]


class MultikeyUuid(Multikey):
    """The values are long identifiers."""

    name = "multikey_uuid"
    kind = "uuid"
    long_lines = True
    asks_one_number = False


class Load(Multikey):
    """Capacity in keys: raise k until recall falls."""

    name = "load"
    rungs = range(8, 4097)
    alone = True
