"""``absent@k``: k keys are given a number, and another is asked for; only saying that it is not there is right."""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import (
    WHOLE,
    Bands,
    Cast,
    Family,
    Line,
    Needs,
    Query,
    Script,
    Statement,
    most_spread,
    spread,
)
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Absent(Family):
    """Guards against guessing: a model that always names some number fails it."""

    name = "absent"
    rungs = range(3, 65)
    asks_one_number = False
    whole = True

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, rung + 1, rung)

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        statements = []
        for i, spot in enumerate(spread(rung, bands, draw, cast)):
            slots = Slots(form=cast.forms[0], key=cast.keys[i], value=cast.values[i])
            statements.append(Statement(cast.phrases.say("fact", slots), spot.depth, spot.band))
        ask = cast.phrases.say("ask", Slots(form=cast.forms[0], key=cast.keys[rung]))
        wanted = Wanted("absent", (cast.phrases.templates["none"],))
        return Script(statements, [Query(WHOLE, ask, wanted, tuple(range(rung)))])

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return most_spread(rung, bands, depth)

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [Line("fact", Slots())], [Line("ask", Slots())]
