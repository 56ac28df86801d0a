"""``absent@k``: k keys are given a number, and another is asked for; only saying that it is not there is right."""

from __future__ import annotations

from evalgate.tasks.families.family import WHOLE, Bands, Cast, Needs, Query, Spot
from evalgate.tasks.families.multikey import Multikey
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Absent(Multikey):
    """Guards against guessing: a model that always names some number fails it."""

    name = "absent"
    rungs = range(3, 65)
    asks_one_number = False
    whole = True

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, rung + 1, rung)

    def queries(self, spots: list[Spot], facts: list[Slots], cast: Cast) -> list[Query]:
        ask = cast.phrases.say(self.ask, Slots(form=cast.forms[0], key=cast.keys[-1]))
        wanted = Wanted("absent", (cast.phrases.templates["none"],))
        return [Query(WHOLE, ask, wanted, tuple(range(len(facts))))]
