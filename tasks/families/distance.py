"""``distance@w``: w other facts are written between the last needle and the question, wherever the needle lies.

Tokens since a needle and writes since it grow together in every other family; here the band moves the one alone.
"""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Cast, Family, Line, Needs, Query, Script, Statement, within
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted

ROOM = 0.5
"""Share of the last band that is kept for the writes."""
CROWDED = 1.2
"""How much more room than their own length the writes need there: lines between them have lengths of their own."""


class Distance(Family):
    """One needle per band, of one form, and w facts of that form after them all."""

    name = "distance"
    rungs = range(4, 1025)
    alone = True

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, len(bands) + rung, len(bands) + rung)

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        script = Script([], [])
        last = len(bands) - 1
        for i, (band, (low, high)) in enumerate(bands.items()):
            end = high - ROOM * (high - low) if i == last else high
            script.statements.append(Statement(self._fact(cast, i), cast.place(draw, low, end), band))
            ask = cast.phrases.say("ask", Slots(form=cast.forms[0], key=cast.keys[i]))
            script.queries.append(Query(band, ask, Wanted("number", (cast.values[i],)), (i,)))
        back = script.statements[last]
        script.statements[last] = back._replace(before=last + 1)
        for i, depth in enumerate(sorted(within(draw, back.depth, 1.0) for _ in range(rung)), last + 1):
            later = i + 1 if i < last + rung else None
            script.statements.append(Statement(self._fact(cast, i), depth, before=later))
        return script

    def _fact(self, cast: Cast, i: int) -> str:
        return cast.phrases.say("fact", Slots(form=cast.forms[0], key=cast.keys[i], value=cast.values[i]))

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        starts = [low for low, _ in bands.values()]
        return sum(low < depth for low in starts) + (rung if starts[-1] < depth else 0)

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [Line("fact", Slots())], [Line("ask", Slots())]

    def fits(self, rung: int, bands: Bands, lines: float) -> bool:
        low, high = list(bands.values())[-1]
        return CROWDED * (rung + 1) <= ROOM * (high - low) * lines
