"""What every family does: say what it needs, write its statements and ask its questions.

A family knows neither tokens nor where lines end: it gives depths, and layout makes positions of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from evalgate.tasks.draw import Draw
from evalgate.tasks.items import Item
from evalgate.tasks.names import Key, ValueKind
from evalgate.tasks.phrases import Phrases, Slots
from evalgate.tasks.wanted import Wanted

Bands = dict[str, tuple[float, float]]

WHOLE = "all"
"""Band of the tasks that need the whole context."""


class Statement(NamedTuple):
    """One line to lay among the filler."""

    text: str
    """A sentence; layout gives it the look of its register."""
    depth: float
    band: str | None = None
    """Where it must begin; None: wherever its depth says."""
    before: int | None = None
    """Index of a statement further on in the script that must come later."""
    form: int = 0
    """Which of the cast's forms it is of."""
    framed: bool = True
    """False: it has a look of its own."""


class Query(NamedTuple):
    """One question about a script."""

    band: str
    text: str
    wanted: Wanted
    about: tuple[int, ...]
    """Statements that the answer follows from; the first lies in the band."""


class Script(NamedTuple):
    """All that one task at one length adds to a haystack."""

    statements: list[Statement]
    queries: list[Query]


class Needs(NamedTuple):
    """What a script takes of the names that nothing else in its haystack may have."""

    forms: int
    keys: int
    values: int
    kind: ValueKind = "number"
    items: int = 0
    """Questions of the user's own, with their documents."""


class Cast(NamedTuple):
    """What a script is written with: the names that it asked for, and the language."""

    phrases: Phrases
    noun: str
    """What the text is called: report, log ..."""
    forms: list[int]
    keys: list[Key]
    values: list[str]
    place: Callable[[Draw, float, float], float]
    """Draws a depth in [low, high), by the suite's placement."""
    items: Sequence[Item] = ()
    """The user's own: one to ask in each band, then those that lie beside them."""


class Line(NamedTuple):
    """A template and what fills it where it is longest but for the words."""

    template: str
    slots: Slots


class Family(ABC):
    """A kind of task.  A task is a family at a rung, such as ``multikey@8``."""

    name: str
    rungs: range | None = None
    """None: it has no rungs."""
    asks_one_number = True
    """Whether every answer is one number, and the last statement counts."""
    whole = False
    """Whether it is asked once, of the whole context."""
    asks_every_fact = False
    """Whether it asks for all facts of its form, so that no filler may state another."""
    long_lines = False
    """Whether its statements say more than who has which number."""
    alone = False
    """Whether other facts in its haystack would change what it measures, so that it shares none."""
    own_filler = False
    """Whether its context is filled with lines of its own."""
    own_items = False
    """Whether it asks the user's own questions."""

    def check(self, rung: int | None) -> None:
        """Raise ValueError for a rung that the family does not have (None: no rung was given)."""
        if self.rungs is None:
            if rung is not None:
                raise ValueError(f"task {self.name!r} has no rungs, found @{rung}; write {self.name!r}")
        elif rung is None or rung not in self.rungs:
            low, high = self.rungs[0], self.rungs[-1]
            shown = f"{self.name}@{min(max(8, low), high)}"
            raise ValueError(f"task {self.name!r} needs a rung from {low} to {high}, such as {shown!r}; found {rung}")

    def asked(self, bands: Bands) -> list[str]:
        """The bands that it is asked in."""
        return [WHOLE] if self.whole else list(bands)

    @abstractmethod
    def needs(self, rung: int, bands: Bands) -> Needs:
        """Forms, keys and values of one script."""

    @abstractmethod
    def script(self, rung: int, bands: Bands, draw: Draw, cast: Cast) -> Script:
        """The statements and questions of one haystack; one question in each band of :meth:`asked`."""

    @abstractmethod
    def most_before(self, rung: int, bands: Bands, depth: float) -> int:
        """The most statements that any seed can lay at a depth under ``depth``."""

    @abstractmethod
    def lines(self, rung: int) -> tuple[list[Line], list[Line]]:
        """The templates of its statements and of its questions."""

    def answers(self, rung: int) -> int:
        """Most values in one answer."""
        return 1

    def fits(self, rung: int, bands: Bands, lines: float) -> bool:
        """Whether its statements have room where they must stand, in a context as long as ``lines`` of them."""
        return True

    def filler(self, rung: int, draw: Draw, cast: Cast) -> Iterator[str]:
        """Sentences without end, where :attr:`own_filler`."""
        raise NotImplementedError(self.name)  # asked only of a family that says it has filler of its own


class Spot(NamedTuple):
    """Where one of several equal statements goes."""

    band: str
    depth: float
    asked: bool


def spread(count: int, bands: Bands, draw: Draw, cast: Cast) -> list[Spot]:
    """``count`` places dealt over the bands in random order; the first of each band is asked for."""
    order = draw.permutation(list(bands))
    spots = []
    for i in range(count):
        band = order[i % len(order)]
        spots.append(Spot(band, cast.place(draw, *bands[band]), i < len(order)))
    return spots


def most_spread(count: int, bands: Bands, depth: float) -> int:
    """``most_before`` of :func:`spread`."""
    per_band = -(-count // len(bands))
    return min(count, per_band * sum(low < depth for low, _ in bands.values()))


def within(draw: Draw, low: float, high: float) -> float:
    """A depth drawn uniformly from [low, high)."""
    return low + (high - low) * draw.unit()
