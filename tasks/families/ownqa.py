"""``ownqa@k``: a question of the user's own about one of k documents of the user's own.

After question answering over long contexts (Hsieh et al., 2024; Liu et al., 2024, "Lost in the Middle"), with the
place of the document that answers under control.
"""

from __future__ import annotations

from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import (
    Bands,
    Cast,
    Family,
    Line,
    Needs,
    Query,
    Script,
    Statement,
    most_spread,
    spread,
)
from evalgate.tasks.wanted import Wanted


class Ownqa(Family):
    """Documents and questions come from the file that the suite names under ``questions``."""

    name = "ownqa"
    rungs = range(1, 1025)
    asks_one_number = False
    long_lines = True
    alone = True
    """Another question's document may answer this one, so each haystack is dealt as a whole."""
    own_items = True

    def needs(self, rung: int, bands: Bands) -> Needs:
        return Needs(0, 0, 0, items=max(rung, len(bands)))

    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        spots = spread(len(cast.items), bands, draw, cast)
        asked, beside = dict(zip(bands, cast.items, strict=False)), iter(cast.items[len(bands) :])
        items = [asked[spot.band] if spot.asked else next(beside) for spot in spots]
        statements = [
            Statement(item.text, spot.depth, spot.band, framed=False) for spot, item in zip(spots, items, strict=True)
        ]
        queries = [
            Query(spot.band, item.question, Wanted("text", item.answers), (i,))
            for i, (spot, item) in enumerate(zip(spots, items, strict=True))
            if spot.asked
        ]
        return Script(statements, queries)

    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        return most_spread(max(rung, len(bands)), bands, depth)

    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        return [], []
