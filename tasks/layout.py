"""Where lines go: filler and needles in one sequence, cut at a line end for every length that is asked.

Positions are token counts from the start of the context.  A needle is laid at the line end nearest to its target;
only one that rounding would push over a band's edge is moved, by as much as it was over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from evalgate.errors import DoesNotFitError
from evalgate.tasks.suite import band_of

ATTEMPTS = 100
PATIENCE = 8
SLACK = 5
"""How far under its budget a context ends, about: half a filler line."""
FITTING = 16
"""How many filler lines are tried to end a context close to its budget."""


REACH = 96
"""From how far before an exact position filler lines are chosen to end there."""
CHOICE = 48
"""How many filler lines they are chosen from."""


class Wish(NamedTuple):
    """A needle to lay: its line in token ids, the budget of the context it belongs to, and its depth there."""

    line: list[int]
    room: int
    depth: float
    band: str | None
    """Where it must begin; None: nowhere in particular."""
    before: int | None = None
    """Index of a wish further on in the list that must come later."""
    exact: int | None = None
    """Token of the context at which it begins, instead of a depth."""


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
    targets = [wish.depth * (wish.room - SLACK) if wish.exact is None else wish.exact for wish in wishes]
    for attempt in range(ATTEMPTS):
        laid = _arrange(wishes, targets, rooms, iter(filler))
        moves = [
            _overshoot(wish, start, laid.ends[wish.room], bands)
            for wish, start in zip(wishes, laid.starts, strict=True)
        ]
        if not any(moves):
            return laid
        # Needles that crowd at an edge push each other back over it; the longer that lasts, the harder they are moved.
        force = 1 + max(0, attempt - PATIENCE) / PATIENCE
        targets = _moved(wishes, targets, [force * move for move in moves])
    late = [wish for wish, move in zip(wishes, moves, strict=True) if move]
    raise DoesNotFitError(
        f"{len(late)} needles of {len(wishes)} cannot be laid inside band {late[0].band!r} of a context of "
        f"{late[0].room} tokens; use a longer length or fewer needles"
    )


def _moved(wishes: list[Wish], targets: list[float], moves: list[float]) -> list[float]:
    """Targets after ``moves``; what must come before a wish that moved to the front, or after one, goes along."""
    moved = [target - move for target, move in zip(targets, moves, strict=True)]
    for i in reversed(range(len(wishes))):
        later = wishes[i].before
        if later is not None:
            moved[i] = min(moved[i], moved[later]) if moves[i] >= 0 else moved[i]
    for i, wish in enumerate(wishes):
        if wish.before is not None:
            moved[wish.before] = max(moved[wish.before], moved[i])
    return moved


def _overshoot(wish: Wish, start: int, end: int, bands: dict[str, tuple[float, float]]) -> float:
    """By how many tokens (later is positive) a needle lies outside its band or its context; 0 when inside."""
    if start + len(wish.line) > end:
        return start + len(wish.line) - end + 1
    depth = start / end
    if wish.band is None or band_of(depth, bands) == wish.band:
        return 0.0
    low, high = bands[wish.band]
    return (depth - high) * end + 2 if depth >= high else (depth - low) * end - 2


def _arrange(wishes: list[Wish], targets: list[float], rooms: list[int], filler: Iterator[list[int]]) -> Laid:
    queue = sorted(range(len(wishes)), key=lambda i: (targets[i], i))
    starts = [0] * len(wishes)
    tokens: list[int] = []
    ends: dict[int, int] = {}
    bound = 0
    """Where the last line of the context before began: a length that is hardly longer ends there too."""
    for room in rooms:
        while True:
            left = room - len(tokens)
            ahead = targets[queue[0]] - len(tokens) if queue else left
            exact = bool(queue) and wishes[queue[0]].exact is not None
            if queue and ahead <= (0 if exact else SLACK) and len(wishes[queue[0]].line) <= left:
                needle = queue.pop(0)
                starts[needle] = len(tokens)
                tokens += wishes[needle].line
                continue
            if exact and 0 < ahead <= REACH and (lines := _filling(filler, int(ahead))):
                tokens += lines
                continue
            line = _fitting(filler, left)
            if line is None:
                break
            tokens += line
        ends[room] = len(tokens) if len(tokens) <= room else bound
        if room != rooms[-1] and len(tokens) <= room:
            bound = len(tokens)
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


def _filling(filler: Iterator[list[int]], gap: int) -> list[int]:
    """Filler lines that together take ``gap`` tokens; empty where no choice of the next ones does."""
    lines = [next(filler) for _ in range(CHOICE)]
    ways: dict[int, list[int]] = {0: []}
    """tokens -> which lines take them; the first way that is found stays."""
    for new, line in enumerate(lines):
        for taken, chosen in list(ways.items()):
            if taken + len(line) <= gap:
                ways.setdefault(taken + len(line), [*chosen, new])
        if gap in ways:
            return [token for one in ways[gap] for token in lines[one]]
    return []
