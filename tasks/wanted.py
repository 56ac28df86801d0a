"""What an answer must say, and how that is written down beside the trial."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple, get_args

from evalgate.tasks.plugins import plugin

ScorerName = Literal["number", "count", "word", "uuid", "key", "absent", "text"]

SCORERS: tuple[ScorerName, ...] = get_args(ScorerName)


class Wanted(NamedTuple):
    """The right answer: which scorer judges, and its values.

    The scorer is one of ``SCORERS``, or of an installed package.  All values must be named, and no other of their kind;
    for ``text`` any one of them will do.
    """

    scorer: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        """What people read and what a trial records; :meth:`read` is its reverse."""
        if self.scorer in SCORERS and self.scorer != "text":
            return ", ".join(self.values)
        return json.dumps(self.values, ensure_ascii=False)

    @classmethod
    def read(cls, scorer: str, text: str) -> Wanted:
        """From what a trial records.  Raises ValueError for a scorer that this version does not have."""
        if scorer not in SCORERS and plugin("scorers", scorer) is None:
            raise ValueError(f"unknown scorer {scorer!r}; this version has {', '.join(SCORERS)}")
        values = text.split(", ") if scorer in SCORERS and scorer != "text" else json.loads(text)
        return cls(scorer, tuple(values))
