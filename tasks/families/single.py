"""``single``: one needle in each band, each of a form of its own; ``single_word``, ``single_uuid`` by value."""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Bands, Cast, Family, Line, Needs, Query, Script, Statement
from evalgate.tasks.names import ValueKind
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Single(Family):
    """A lone fact: the easiest needle, and the floor of every other."""

    def __init__(self, kind: ValueKind) -> None:
        self.name = "single" if kind == "number" else f"single_{kind}"
        self.kind = kind
        self.asks_one_number = kind == "number"
        self.long_lines = kind == "uuid"

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(len(bands), len(bands), len(bands), self.kind)

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        statements, queries = [], []
        for i, (band, edges) in enumerate(bands.items()):
            slots = Slots(form=cast.forms[i], key=cast.keys[i], value=cast.values[i], kind=self.kind)
            statements.append(Statement(cast.phrases.say("fact", slots), cast.place(draw, *edges), band, form=i))
            queries.append(Query(band, cast.phrases.say("ask", slots), Wanted(self.kind, (slots.value,)), (i,)))
        return Script(statements, queries)

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return sum(low < depth for low, _ in bands.values())

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        slots = Slots(kind=self.kind)
        return [Line("fact", slots)], [Line("ask", slots)]
