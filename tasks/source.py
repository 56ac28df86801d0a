"""What a run needs of a suite's haystacks, whether they are built as it goes or were compiled before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from evalgate.records import CorpusId, QuestionsId
from evalgate.tasks.haystack import Haystack
from evalgate.tasks.packing import Stream
from evalgate.tasks.suite import Suite


class Source(Protocol):
    """Haystacks of one suite, seed set and tokenizer."""

    @property
    def suite(self) -> Suite:
        """What is asked."""

    @property
    def seed_set(self) -> str:
        """Which seeds."""

    @property
    def streams(self) -> Sequence[Stream]:
        """What shares a haystack."""

    @property
    def reserve(self) -> int:
        """R: template, longest question and answer budget, in tokens."""

    @property
    def tail_tokens(self) -> int:
        """The longest that can stand between the context and the answer."""

    @property
    def needle_tokens(self) -> int:
        """The longest line that states anything."""

    @property
    def most_seeds(self) -> int | None:
        """Seeds that it can give; None: as many as are asked."""

    @property
    def corpus_id(self) -> CorpusId | None:
        """The documents that filler was taken from."""

    @property
    def questions_id(self) -> QuestionsId | None:
        """The user's own questions."""

    @property
    def compiled(self) -> str | None:
        """sha256 of a compiled suite; None where haystacks are built."""

    def build(self, seed: int, stream: Stream) -> Haystack:
        """The haystack of ``seed`` in ``stream``."""

    def context_id(self, seed: int, stream: Stream, length: int) -> str:
        """Name of one context; the same for every model that shares the tokenizer."""
