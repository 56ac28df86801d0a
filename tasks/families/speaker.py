"""``speaker@k``: k speakers each state a number; who stated a given one is asked."""

from __future__ import annotations

from evalgate.tasks.families.family import Cast
from evalgate.tasks.families.multikey import Multikey
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted


class Speaker(Multikey):
    """Retrieval backwards, from the value to the key."""

    name = "speaker"
    rungs = range(3, 65)
    asks_one_number = False
    fact, ask = "claim", "ask_speaker"
    framed = False

    def wanted(self, fact: Slots, cast: Cast) -> Wanted:
        return Wanted("key", (cast.phrases.name(fact.key),))
