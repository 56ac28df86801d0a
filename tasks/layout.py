"""Where lines go: filler and needles in one sequence, cut at a line end for every length that is asked.

Positions are token counts from the start of the context.  A needle is laid at the line end nearest to its target;
only one that rounding would push over a band's edge is moved, by as much as it was over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from evalgate.errors import DoesNotFitError
from evalgate.tasks.suite import band_of

ATTEMPTS = 40
SLACK = 5
"""How far under its budget a context ends, about: half a filler line."""
FITTING = 16
"""How many filler lines are tried to end a context close to its budget."""


class Wish(NamedTuple):
    """A needle to lay: its line in token ids, the budget of the context it belongs to, and its depth there."""

    line: list[int]
    room: int
    depth: float
    band: str
    before: int | None
    """Index of the wish that must come later (the last setting of the same key); such a wish has no band."""


class Laid(NamedTuple):
    """Token ids of the longest context, where each wish begins, and the context's end for each budget."""

    tokens: list[int]
    starts: list[int]
    ends: dict[int, int]


def lay(
    wishes: list[Wish], rooms: list[int], bands: dict[str, tuple[float, float]], filler: Iterable[list[int]]
) -> Laid:
    """Lay ``wishes`` among filler lines so that each falls into its band of its own context.

    ``rooms`` are the context budgets (L - R), ascending; ``filler`` gives the same endless lines each time it is read.
    Raises DoesNotFitError when no arrangement is found.
    """
    targets = [wish.depth * (wish.room - SLACK) for wish in wishes]
    for _ in range(ATTEMPTS):
        laid = _arrange(wishes, targets, rooms, iter(filler))
        moves = [
            _overshoot(wish, start, laid.ends[wish.room], bands)
            for wish, start in zip(wishes, laid.starts, strict=True)
        ]
        if not any(moves):
            return laid
        targets = [target - move for target, move in zip(targets, moves, strict=True)]
        targets = [t if w.before is None else min(t, targets[w.before]) for t, w in zip(targets, wishes, strict=True)]
    late = [wish for wish, move in zip(wishes, moves, strict=True) if move]
    raise DoesNotFitError(
        f"{len(late)} needles of {len(wishes)} cannot be laid inside band {late[0].band!r} of a context of "
        f"{late[0].room} tokens; use a longer length or fewer needles"
    )


def _overshoot(wish: Wish, start: int, end: int, bands: dict[str, tuple[float, float]]) -> float:
    """By how many tokens (later is positive) a needle lies outside its band or its context; 0 when inside."""
    if start + len(wish.line) > end:
        return start + len(wish.line) - end + 1
    depth = start / end
    if wish.before is not None or band_of(depth, bands) == wish.band:
        return 0.0
    low, high = bands[wish.band]
    return (depth - high) * end + 2 if depth >= high else (depth - low) * end - 2


def _arrange(wishes: list[Wish], targets: list[float], rooms: list[int], filler: Iterator[list[int]]) -> Laid:
    queue = sorted(range(len(wishes)), key=lambda i: (targets[i], i))
    starts = [0] * len(wishes)
    tokens: list[int] = []
    ends: dict[int, int] = {}
    for room in rooms:
        while True:
            left = room - len(tokens)
            if queue and targets[queue[0]] <= len(tokens) + SLACK and len(wishes[queue[0]].line) <= left:
                needle = queue.pop(0)
                starts[needle] = len(tokens)
                tokens += wishes[needle].line
                continue
            line = _fitting(filler, left)
            if line is None:
                break
            tokens += line
        ends[room] = len(tokens)
        if room != rooms[-1]:
            tokens += next(line for line in filler if len(line) > room - len(tokens))
    for needle in queue:
        starts[needle] = len(tokens)
    return Laid(tokens, starts, ends)


def _fitting(filler: Iterator[list[int]], left: int) -> list[int] | None:
    """The next filler line; near the end of a context, the longest of a few that still fits."""
    line = next(filler)
    if len(line) <= left and left - len(line) >= 2 * FITTING:
        return line
    tried = [line, *(next(filler) for _ in range(FITTING - 1))]
    fits = [line for line in tried if len(line) <= left]
    return max(fits, key=len) if fits else None
