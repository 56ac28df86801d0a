"""Casting: what the script of every entry is written with, so that no two entries of a haystack share a name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from evalgate.tasks import names
from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Cast, Needs, Script
from evalgate.tasks.items import Deck, Items
from evalgate.tasks.packing import Entry, Stream
from evalgate.tasks.prompt import Wording
from evalgate.tasks.suite import Suite
from evalgate.tasks.task import Task

Name = tuple[str | int, ...]


class Part(NamedTuple):
    """One entry's script, and what it is written with."""

    entry: Entry
    script: Script
    cast: Cast

    def form(self, index: int) -> str:
        """The form of a statement, in words; empty for what has none."""
        forms = self.cast.forms
        return self.cast.phrases.forms[forms[index]] if forms else ""


class Casting:
    """Writes the scripts of one suite's haystacks."""

    def __init__(self, suite: Suite, wording: Wording, items: Items | None, root: Name) -> None:
        self._suite = suite
        self._wording = wording
        self._root = root
        self._reserve = wording.reserve()
        self._decks = {} if items is None else {task: self._deck(Task(task), items) for task in suite.own_tasks}

    @property
    def most_seeds(self) -> int | None:
        """Seeds after which a cell would be asked a question again; None: names never run out."""
        return min((deck.seeds for deck in self._decks.values()), default=None)

    def parts(self, seed: int, stream: Stream) -> list[Part]:
        """The script of every entry; forms, keys and values are never shared between entries."""
        name: Name = (*self._root, seed, stream.index)
        tasks = [Task(entry.task) for entry in stream.entries]
        needs = [task.family.needs(task.rung, self._suite.bands) for task in tasks]
        phrases = self._wording.phrases
        forms = iter(Draw(*name, "forms").permutation(range(len(phrases.forms))))
        keys = iter(names.draw_keys(Draw(*name, "keys"), sum(need.keys for need in needs)))
        values = _values(needs, name)
        parts = []
        for entry, task, need in zip(stream.entries, tasks, needs, strict=True):
            cast = Cast(
                phrases=phrases,
                noun=self._wording.noun,
                forms=list(itertools.islice(forms, need.forms)),
                keys=list(itertools.islice(keys, need.keys)),
                values=list(itertools.islice(values[need.kind], need.values)),
                place=self._placer(entry),
                items=self._decks[entry.task].deal(seed, Draw(*name, "items")) if need.items else [],
            )
            draw = Draw(*name, "plants", entry.task, entry.length)
            script = task.family.script(task.rung, self._suite.bands, draw, cast)
            parts.append(Part(entry, script if entry.alone is None else _alone(script, entry.alone), cast))
        return parts

    def _deck(self, task: Task, items: Items) -> Deck:
        bands = len(self._suite.bands)
        need = task.family.needs(task.rung, self._suite.bands)
        return Deck(items, bands, need.items - bands, Draw(*self._root, "items", task.name))

    def _placer(self, entry: Entry) -> Callable[[Draw, float, float], float]:
        room = entry.length - self._reserve
        return lambda draw, low, high: self._suite.placement.place(draw, low, high, room)


_VALUES: dict[names.ValueKind, str] = {"number": "values", "word": "words", "uuid": "uuids"}
"""What the draw of each kind of value is called."""


def _values(needs: list[Needs], name: Name) -> dict[names.ValueKind, Iterator[str]]:
    counts: dict[names.ValueKind, int] = {}
    for need in needs:
        counts[need.kind] = counts.get(need.kind, 0) + need.values
    return {kind: iter(names.draw_values(Draw(*name, _VALUES[kind]), kind, count)) for kind, count in counts.items()}


def _alone(script: Script, band: str) -> Script:
    """Only the question of ``band``, and the statements that its answer follows from."""
    (query,) = (query for query in script.queries if query.band == band)
    kept = {old: new for new, old in enumerate(sorted(query.about))}
    statements = []
    for old in kept:
        statement = script.statements[old]
        later = statement.before
        statements.append(statement._replace(before=None if later is None else kept.get(later)))
    return Script(statements, [query._replace(about=tuple(kept[i] for i in query.about))])
