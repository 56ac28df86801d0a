"""``frequent@k``: the context is words, k of them more often than any other; which, is asked.

After RULER's frequent words (Hsieh et al., 2024).  Counts are laid line by line, so that the order of frequencies is
the same in every context, whatever line it ends with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import WHOLE, Bands, Cast, Family, Line, Needs, Query, Script
from evalgate.tasks.phrases import Slots
from evalgate.tasks.wanted import Wanted

RARE = 3
"""Words of a line that are not asked for."""


class Frequent(Family):
    """Word i of k stands k - i times in every line."""

    name = "frequent"
    rungs = range(1, 5)
    asks_one_number = False
    whole = True
    alone = True
    own_filler = True

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(1, 0, rung, "word")

    def pattern(self, wanted: Sequence[str], line: int) -> list[str]:
        """The asked words of one line."""
        return [word for i, word in enumerate(wanted) for _ in range(len(wanted) - i)]

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        ask = cast.phrases.say("ask_frequent", Slots(copies=rung))
        return Script([], [Query(WHOLE, ask, Wanted("word", tuple(cast.values)), ())])

    def filler(self, rung: int, draw: Draw, cast: Cast) -> Iterator[str]:
        rare = [word for word in cast.phrases.code_words if word not in cast.values]
        line = 0
        while True:
            words = self.pattern(cast.values, line) + draw.permutation(rare)[:RARE]
            yield " ".join(draw.permutation(words)) + "."
            line += 1

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return 0

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [], [Line("ask_frequent", Slots(copies=rung))]

    def answers(self, rung: int) -> int:
        return rung
