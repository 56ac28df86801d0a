"""``multiquery@k``: k keys of one band are asked for in one question."""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Cast, Family, Line, Needs, Query, Script, Statement
from evalgate.tasks.names import Key
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Multiquery(Family):
    """Several facts in one answer; all must be right and none too many."""

    name = "multiquery"
    rungs = range(2, 17)
    asks_one_number = False

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, len(bands) * rung, len(bands) * rung)

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        script = Script([], [])
        for turn, (band, edges) in enumerate(bands.items()):
            own = range(turn * rung, (turn + 1) * rung)
            for i in own:
                slots = Slots(form=cast.forms[0], key=cast.keys[i], value=cast.values[i])
                script.statements.append(Statement(cast.phrases.say("fact", slots), cast.place(draw, *edges), band))
            asked = Slots(form=cast.forms[0], keys=tuple(cast.keys[i] for i in own))
            wanted = Wanted("number", tuple(cast.values[i] for i in own))
            script.queries.append(Query(band, cast.phrases.say("ask_many", asked), wanted, tuple(own)))
        return script

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return rung * sum(low < depth for low, _ in bands.values())

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [Line("fact", Slots())], [Line("ask_many", Slots(keys=(Key(0, 0),) * rung))]

    def answers(self, rung: int) -> int:
        return rung
