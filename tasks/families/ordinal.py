"""``ordinal@k``: a key is set k times and the n-th setting is asked for; its band is that of the n-th."""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Cast, Family, Line, Needs, Query, Script, Statement, within
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Ordinal(Family):
    """The order of writes, not only the last of them: one key per band, all of one form."""

    name = "ordinal"
    rungs = range(2, 17)
    asks_one_number = False

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, len(bands), len(bands) * rung)

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        script = Script([], [])
        for turn, (band, edges) in enumerate(bands.items()):
            first, nth = len(script.statements), 1 + draw.below(rung)
            asked, at = first + nth - 1, cast.place(draw, *edges)
            early = sorted(within(draw, 0.0, at) for _ in range(nth - 1))
            late = sorted(within(draw, at, 1.0) for _ in range(rung - nth))
            slots = Slots(form=cast.forms[0], key=cast.keys[turn], nth=nth)
            for i, depth in enumerate([*early, at, *late], first):
                text = cast.phrases.say("fact", slots._replace(value=cast.values[i]))
                later = asked if i < asked else i + 1 if i < first + rung - 1 else None
                script.statements.append(Statement(text, depth, band if i == asked else None, later))
            wanted = Wanted("number", (cast.values[asked],))
            script.queries.append(Query(band, cast.phrases.say("ask_nth", slots), wanted, (asked,)))
        return script

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return rung * len(bands)

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [Line("fact", Slots())], [Line("ask_nth", Slots(nth=rung))]
