"""``compose``: two facts in different bands make the answer; the band is that of the number."""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Cast, Family, Line, Needs, Query, Script, Statement
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Compose(Family):
    """Who is whose partner lies in one band, the partner's number in another."""

    name = "compose"
    fact, link, ask = "fact", "partner", "ask_partner"

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, 2 * len(bands), len(bands))

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        script = Script([], [])
        for turn, (band, edges) in enumerate(bands.items()):
            elsewhere = draw.choice([other for other in bands if other != band] or [band])
            asked, partner = cast.keys[2 * turn : 2 * turn + 2]
            fact = Slots(form=cast.forms[0], key=partner, value=cast.values[turn])
            link = Slots(form=cast.forms[0], key=asked, other=partner)
            script.statements.append(Statement(self.tell(self.fact, fact, draw, cast), cast.place(draw, *edges), band))
            depth = cast.place(draw, *bands[elsewhere])
            script.statements.append(Statement(self.tell(self.link, link, draw, cast), depth, elsewhere))
            wanted = Wanted("number", (fact.value,))
            script.queries.append(Query(band, cast.phrases.say(self.ask, link), wanted, (2 * turn, 2 * turn + 1)))
        return script

    def tell(self, template: str, slots: Slots, draw: Draw, cast: Cast) -> str:
        """One statement."""
        return cast.phrases.say(template, slots)

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        # Every partner may lie in the first band.
        return len(bands) + sum(low < depth for low, _ in bands.values())

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [Line(self.fact, Slots()), Line(self.link, Slots())], [Line(self.ask, Slots())]
