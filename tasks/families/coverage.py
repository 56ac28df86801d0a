"""``coverage@k``: a summary must name k facts that lie in all bands."""

from __future__ import annotations

from evalgate.tasks.families.family import WHOLE, Cast, Line, Query, Spot
from evalgate.tasks.families.multikey import Multikey
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Coverage(Multikey):
    """Everything of one form, from the first line to the last."""

    name = "coverage"
    rungs = range(3, 33)
    asks_one_number = False
    whole = True
    asks_every_fact = True
    ask = "ask_every"

    def queries(self, spots: list[Spot], facts: list[Slots], cast: Cast) -> list[Query]:
        ask = cast.phrases.say(self.ask, Slots(form=cast.forms[0], noun=cast.noun))
        return [Query(WHOLE, ask, Wanted("number", tuple(cast.values)), tuple(range(len(facts))))]

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [Line(self.fact, Slots())], [Line(self.ask, Slots(noun="report"))]

    def answers(self, rung: int) -> int:
        return rung
