"""``trace@h``: a number passes from key to key h times; the last key's is asked, the band is the number's.

After RULER's variable tracking (Hsieh et al., 2024), with the place of the first link controlled.
"""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Cast, Family, Line, Needs, Query, Script, Statement, within
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Trace(Family):
    """One chain per band, all of one form; every link comes later than the one that it follows."""

    name = "trace"
    rungs = range(1, 9)

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, (rung + 1) * len(bands), len(bands))

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        script = Script([], [])
        for turn, (band, edges) in enumerate(bands.items()):
            first = len(script.statements)
            keys = cast.keys[turn * (rung + 1) : (turn + 1) * (rung + 1)]
            slots = Slots(form=cast.forms[0], key=keys[0], value=cast.values[turn])
            at = cast.place(draw, *edges)
            script.statements.append(Statement(cast.phrases.say("fact", slots), at, band, first + 1))
            for hop, depth in enumerate(sorted(within(draw, at, 1.0) for _ in range(rung)), 1):
                link = slots._replace(key=keys[hop], other=keys[hop - 1])
                later = first + hop + 1 if hop < rung else None
                script.statements.append(Statement(cast.phrases.say("same_as", link), depth, before=later))
            ask = cast.phrases.say("ask", slots._replace(key=keys[rung]))
            about = tuple(range(first, first + rung + 1))
            script.queries.append(Query(band, ask, Wanted("number", (slots.value,)), about))
        return script

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return (rung + 1) * sum(low < depth for low, _ in bands.values())

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [Line("fact", Slots()), Line("same_as", Slots())], [Line("ask", Slots())]
