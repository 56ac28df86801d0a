"""Which (task, length) pairs share a haystack: first fit under the density cap, the same for every seed.

Packing is decided on the largest load that any seed can lay, so a needle's position is never changed to make room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from evalgate.errors import DoesNotFitError
from evalgate.records import Cell
from evalgate.tasks import words
from evalgate.tasks.registers import RegisterName
from evalgate.tasks.suite import Suite
from evalgate.tasks.task import Task


class Entry(NamedTuple):
    """One task at one length."""

    task: str
    length: int
    alone: str | None = None
    """A band of which only what its question needs is laid (arm ``isolated``); None: everything."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The entries that share the haystacks of one stream."""

    index: int
    entries: tuple[Entry, ...]

    @property
    def longest(self) -> int:
        """The longest length asked in this stream, in tokens."""
        return max(entry.length for entry in self.entries)

    @property
    def isolated(self) -> bool:
        """Whether it holds one question's needles alone."""
        return self.entries[0].alone is not None

    def asks(self, cell: Cell) -> bool:
        """Whether ``cell`` asks the haystacks of this stream."""
        return Entry(cell.task, cell.length, cell.band if cell.arm == "isolated" else None) in self.entries


class Budget(NamedTuple):
    """What a prompt leaves for the context, in tokens."""

    reserve: int
    """R"""
    needles: Mapping[str, int]
    """task -> the longest line that states anything."""
    filler: int = 16
    """The longest filler line."""


MIN_CONTEXT = 420
"""Under this many tokens a context cannot be guaranteed to end within 2% of its budget..."""
MIN_LINES = 26
"""... nor under this many of the longest filler line."""


def pack(suite: Suite, budget: Budget) -> list[Stream]:
    """Pack the suite's entries into streams.  Raises DoesNotFitError for a length too short for its needles."""
    least = max(MIN_CONTEXT, MIN_LINES * budget.filler)
    for length in suite.lengths:
        if length - budget.reserve < least:
            raise DoesNotFitError(
                f"length {length} leaves {max(0, length - budget.reserve)} tokens for the context after "
                f"{budget.reserve} for template, question and answer; expected at least {least}: "
                f"the shortest length that fits is {budget.reserve + least}"
            )
    pairs = [(task, length) for length in sorted(suite.lengths, reverse=True) for task in suite.tasks]
    for task, length in pairs:
        _check_alone(suite, budget, Entry(task, length))
    bins: list[list[Entry]] = []
    if set(suite.arms) != {"isolated"}:
        for task, length in pairs:
            _drop(suite, budget, bins, Entry(task, length))
    if "isolated" in suite.arms:
        bins += [[Entry(*pair, band)] for pair in pairs for band in Task(pair[0]).family.asked(suite.bands)]
    return [Stream(index, tuple(entries)) for index, entries in enumerate(bins)]


def _drop(suite: Suite, budget: Budget, bins: list[list[Entry]], entry: Entry) -> None:
    """Put ``entry`` into the first bin that has room."""
    for entries in bins:
        if _alike(suite, entries[0], entry) and _fits(suite, budget, [*entries, entry]):
            entries.append(entry)
            return
    bins.append([entry])


def _alike(suite: Suite, first: Entry, second: Entry) -> bool:
    """Whether two entries may share filler."""
    if suite.streams.mode == "per-task" and first.task != second.task:
        return False
    tasks = Task(first.task), Task(second.task)
    return not any(task.family.alone for task in tasks) and register_of(suite, first) == register_of(suite, second)


def register_of(suite: Suite, entry: Entry) -> RegisterName:
    """The register in which an entry's haystack is written."""
    return Task(entry.task).register or suite.haystack.register_


def _check_alone(suite: Suite, budget: Budget, entry: Entry) -> None:
    task, room = Task(entry.task), entry.length - budget.reserve
    needle = budget.needles[entry.task]
    if not _fits(suite, budget, [entry]):
        raise DoesNotFitError(
            f"{entry.task} at length {entry.length} would fill more than {suite.streams.density_cap:.0%} of its "
            f"context with needles of {needle} tokens; ask it at a longer length or at a lower rung"
        )
    if needle and not task.family.fits(task.rung, suite.bands, room / needle):
        raise DoesNotFitError(
            f"{entry.task} at length {entry.length} has no room for its needles where they must stand; ask it at a "
            "longer length or at a lower rung"
        )


def _fits(suite: Suite, budget: Budget, entries: list[Entry]) -> bool:
    tasks = [(Task(entry.task), entry.length) for entry in entries]
    if sum(task.family.needs(task.rung, suite.bands).forms for task, _ in tasks) > len(words.ATTRIBUTES):
        return False
    for asked in {entry.length for entry in entries}:
        room = asked - budget.reserve
        tokens = 0
        for task, length in tasks:
            share = 1.0 if length <= asked else room / (0.98 * (length - budget.reserve))
            tokens += task.family.most_before(task.rung, suite.bands, share) * budget.needles[task.name]
        if tokens > suite.streams.density_cap * room:
            return False
    return True
