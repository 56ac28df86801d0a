"""What an answer must say, and how that is written down beside the trial."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple, get_args

ScorerName = Literal["number", "count", "word", "uuid", "key", "absent", "text"]

SCORERS: tuple[ScorerName, ...] = get_args(ScorerName)


class Wanted(NamedTuple):
    """The right answer: which scorer judges, and its values.

    All values must be named, and no other of their kind; for ``text`` any one of them will do.
    """

    scorer: ScorerName
    values: tuple[str, ...]

    def __str__(self) -> str:
        """What people read and what a trial records; :meth:`read` is its reverse."""
        return json.dumps(self.values, ensure_ascii=False) if self.scorer == "text" else ", ".join(self.values)

    @classmethod
    def read(cls, scorer: str, text: str) -> Wanted:
        """From what a trial records.  Raises ValueError for a scorer that this version does not have."""
        if scorer not in SCORERS:
            raise ValueError(f"unknown scorer {scorer!r}; this version has {', '.join(SCORERS)}")
        values = json.loads(text) if scorer == "text" else text.split(", ")
        return cls(scorer, tuple(values))
