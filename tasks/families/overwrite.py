"""``overwrite@k``: a key is set k times and the last setting counts; its band is that of the last setting."""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Cast, Family, Line, Needs, Query, Script, Statement, within
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Overwrite(Family):
    """State that must be replaced, not only kept: one key per band, all of one form."""

    name = "overwrite"
    rungs = range(2, 33)
    first, later, ask = "fact", "fact", "ask"
    framed = True

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, len(bands), len(bands) * rung)

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        script = Script([], [])
        values = iter(cast.values)
        for key, (band, edges) in enumerate(bands.items()):
            last = cast.place(draw, *edges)
            depths = [*sorted(within(draw, 0.0, last) for _ in range(rung - 1)), last]
            final = len(script.statements) + rung - 1
            for turn, depth in enumerate(depths):
                slots = Slots(form=cast.forms[0], key=cast.keys[key], value=next(values))
                text = cast.phrases.say(self.first if turn == 0 else self.later, slots)
                is_last = turn == rung - 1
                script.statements.append(
                    Statement(text, depth, band if is_last else None, None if is_last else final, framed=self.framed)
                )
            wanted = Wanted("number", (slots.value,))
            script.queries.append(Query(band, cast.phrases.say(self.ask, slots), wanted, (final,)))
        return script

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return sum(rung if low < depth else rung - 1 for low, _ in bands.values())

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [Line(self.first, Slots()), Line(self.later, Slots())], [Line(self.ask, Slots())]
