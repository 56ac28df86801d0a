"""``multivalue@k``: a key has k values, all in one band; all of them are asked for."""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Cast, Family, Line, Needs, Query, Script, Statement
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Multivalue(Family):
    """One key per band; an answer that lacks a value, or has one too many, is wrong."""

    name = "multivalue"
    rungs = range(2, 17)
    asks_one_number = False

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, len(bands), len(bands) * rung)

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        script = Script([], [])
        values = iter(cast.values)
        for key, (band, edges) in enumerate(bands.items()):
            first = len(script.statements)
            slots = Slots(form=cast.forms[0], key=cast.keys[key])
            given = [next(values) for _ in range(rung)]
            for value in given:
                text = cast.phrases.say("one_of", slots._replace(value=value))
                script.statements.append(Statement(text, cast.place(draw, *edges), band))
            about = tuple(range(first, first + rung))
            wanted = Wanted("number", tuple(given))
            script.queries.append(Query(band, cast.phrases.say("ask_all", slots), wanted, about))
        return script

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return rung * sum(low < depth for low, _ in bands.values())

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [Line("one_of", Slots())], [Line("ask_all", Slots())]

    def answers(self, rung: int) -> int:
        return rung
