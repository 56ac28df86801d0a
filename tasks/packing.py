"""Which (task, length) pairs share a haystack: first fit under the density cap, the same for every seed.

Packing is decided on the largest load that any seed can lay, so a needle's position is never changed to make room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from evalgate.errors import DoesNotFitError
from evalgate.tasks import words
from evalgate.tasks.suite import Suite, Task


class Entry(NamedTuple):
    """One task at one length."""

    task: str
    length: int


@dataclass(frozen=True, slots=True)
class Stream:
    """The entries that share the haystacks of one stream."""

    index: int
    entries: tuple[Entry, ...]

    @property
    def longest(self) -> int:
        """The longest length asked in this stream, in tokens."""
        return max(entry.length for entry in self.entries)


class Budget(NamedTuple):
    """What a prompt leaves for the context, in tokens."""

    reserve: int
    """R"""
    needle: int
    """The longest needle line."""


MIN_CONTEXT = 420
"""Under this many tokens a context cannot be guaranteed to end within 2% of its budget."""


def pack(suite: Suite, budget: Budget) -> list[Stream]:
    """Pack the suite's entries into streams.  Raises DoesNotFitError for a length too short for its needles."""
    for length in suite.lengths:
        if length - budget.reserve < MIN_CONTEXT:
            raise DoesNotFitError(
                f"length {length} leaves {max(0, length - budget.reserve)} tokens for the context after "
                f"{budget.reserve} for template, question and answer; expected at least {MIN_CONTEXT}: "
                f"the shortest length that fits is {budget.reserve + MIN_CONTEXT}"
            )
    per_task = suite.streams.mode == "per-task"
    bins: list[list[Entry]] = []
    for length in sorted(suite.lengths, reverse=True):
        for task in suite.tasks:
            entry = Entry(task, length)
            if not _fits(suite, budget, [entry]):
                raise DoesNotFitError(
                    f"{task} at length {length} would fill more than {suite.streams.density_cap:.0%} of its context "
                    f"with needles of {budget.needle} tokens; ask it at a longer length or at a lower rung"
                )
            for entries in bins:
                if per_task and entries[0].task != task:
                    continue
                if _fits(suite, budget, [*entries, entry]):
                    entries.append(entry)
                    break
            else:
                bins.append([entry])
    return [Stream(index, tuple(entries)) for index, entries in enumerate(bins)]


def _fits(suite: Suite, budget: Budget, entries: list[Entry]) -> bool:
    tasks = [(Task(entry.task), entry.length) for entry in entries]
    if sum(t.family.forms(t.rung, suite.bands) for t, _ in tasks) > len(words.ATTRIBUTES):
        return False
    for asked in {entry.length for entry in entries}:
        room = asked - budget.reserve
        needles = 0
        for task, length in tasks:
            share = 1.0 if length <= asked else room / (0.98 * (length - budget.reserve))
            needles += task.family.most_before(task.rung, suite.bands, share)
        if needles * budget.needle > suite.streams.density_cap * room:
            return False
    return True
