"""``docqa@k``: one document among k answers the question; in ``docqa_hop`` it takes two documents of different bands.

After RULER's question answering over paragraphs (Hsieh et al., 2024), with the place of the right one controlled.
"""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.compose import Compose
from evalgate.tasks.families.family import Cast
from evalgate.tasks.families.multikey import Multikey
from evalgate.tasks.phrases import Slots


class Docqa(Multikey):
    """The fact stands amid sentences that say something else."""

    name = "docqa"
    rungs = range(3, 65)
    long_lines = True
    fact, ask = "file", "ask_file"
    framed = False

    def tell(self, fact: Slots, draw: Draw, cast: Cast) -> str:
        return cast.phrases.say(self.fact, _amid(fact, draw, cast))


class DocqaHop(Compose):
    """Who keeps a file stands in another file."""

    name = "docqa_hop"
    long_lines = True
    fact, link, ask = "file", "keeper_file", "ask_keeper_file"

    def tell(self, template: str, slots: Slots, draw: Draw, cast: Cast) -> str:
        return cast.phrases.say(template, _amid(slots, draw, cast))


def _amid(slots: Slots, draw: Draw, cast: Cast) -> Slots:
    return slots._replace(before=cast.phrases.filler(draw), after=cast.phrases.filler(draw))
