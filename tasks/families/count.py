"""``count@k``: how often a key was given a number, from 1 to k times; the rest of k + 1 go to a rival."""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import WHOLE, Bands, Cast, Family, Line, Needs, Query, Script, Statement
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Count(Family):
    """Two keys of one form: the number of lines of that form says nothing."""

    name = "count"
    rungs = range(2, 17)
    asks_one_number = False
    whole = True

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, 2, rung + 1)

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        times = 1 + draw.below(rung)
        statements = []
        for i, value in enumerate(cast.values):
            slots = Slots(form=cast.forms[0], key=cast.keys[0 if i < times else 1], value=value)
            statements.append(Statement(cast.phrases.say("one_of", slots), cast.place(draw, 0.0, 1.0)))
        ask = cast.phrases.say("ask_count", Slots(form=cast.forms[0], key=cast.keys[0]))
        return Script(statements, [Query(WHOLE, ask, Wanted("count", (str(times),)), tuple(range(times)))])

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return rung + 1

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [Line("one_of", Slots())], [Line("ask_count", Slots())]
