"""``coverage@k``: a summary must name k facts that lie in all bands."""

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


class Coverage(Family):
    """Everything of one form, from the first line to the last."""

    name = "coverage"
    rungs = range(3, 33)
    asks_one_number = False
    whole = True
    asks_every_fact = True

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, rung, rung)

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        statements = []
        for i, spot in enumerate(spread(rung, bands, draw, cast)):
            slots = Slots(form=cast.forms[0], key=cast.keys[i], value=cast.values[i])
            statements.append(Statement(cast.phrases.say("fact", slots), spot.depth, spot.band))
        ask = cast.phrases.say("ask_every", Slots(form=cast.forms[0], noun=cast.noun))
        return Script(statements, [Query(WHOLE, ask, Wanted("number", tuple(cast.values)), tuple(range(rung)))])

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return most_spread(rung, bands, depth)

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [Line("fact", Slots())], [Line("ask_every", Slots(noun="report"))]

    def answers(self, rung: int) -> int:
        return rung
