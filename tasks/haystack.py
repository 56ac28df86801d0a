"""A haystack: one seed of one stream, with the contexts that are cut from it and the questions asked of them.

The same (suite digest, generator version, seed set, seed, stream, tokenizer) gives the same tokens on any machine,
whatever was built before.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from evalgate.errors import RefusedError
from evalgate.records import Cell, Context
from evalgate.tasks import language, words
from evalgate.tasks.draw import Draw
from evalgate.tasks.families import Plant
from evalgate.tasks.layout import Laid, Wish, lay
from evalgate.tasks.packing import Budget, Stream, pack
from evalgate.tasks.prompt import Tokenizer, Wording
from evalgate.tasks.suite import Suite, Task

TRAINING_SET = "train"
BLOCK = 256
"""Filler lines that are tokenized together."""


class Fact(NamedTuple):
    """What one needle states."""

    form: int
    key: language.Key
    value: int


class Needle(NamedTuple):
    """One needle as it lies in a haystack; ``start`` and ``end`` count from prompt token 0."""

    task: str
    length: int
    band: str
    fact: Fact
    start: int
    end: int
    asked: bool


class Probe(NamedTuple):
    """One question on one context: everything about a trial that is known before it is asked."""

    trial_id: str
    cell: Cell
    needle: Needle
    depth: float
    same_form: int
    facts: int
    tail: list[int]
    prompt_sha256: str


@dataclass(frozen=True, slots=True)
class Haystack:
    """Token ids of the longest prompt's head and context, its cuts and its probes."""

    seed: int
    stream: int
    tokens: list[int]
    context_start: int
    contexts: list[Context]
    ends: dict[int, int]
    """length -> token index at which its context ends."""
    probes: list[Probe]

    def only(self, cells: Collection[Cell]) -> Haystack:
        """What ``cells`` ask of it: the same tokens, up to the longest length that is asked, and the same prompts."""
        probes = [probe for probe in self.probes if probe.cell in cells]
        lengths = {probe.cell.length for probe in probes}
        ends = {length: end for length, end in self.ends.items() if length in lengths}
        return replace(
            self,
            tokens=self.tokens[: max(ends.values(), default=0)],
            contexts=[context for context in self.contexts if context.length in lengths],
            ends=ends,
            probes=probes,
        )


class Builder:
    """Builds the haystacks of one suite for one tokenizer."""

    def __init__(self, suite: Suite, tokenizer: Tokenizer, seed_set: str) -> None:
        if seed_set == TRAINING_SET:
            raise RefusedError(f"seed set {TRAINING_SET!r} is reserved for training models; choose another name")
        self.suite = suite
        self.seed_set = seed_set
        self.wording = Wording(tokenizer)
        self.reserve = self.wording.reserve(suite.decoding.max_tokens)
        self.streams = pack(suite, Budget(self.reserve, self.wording.needle_tokens))
        self._root = (suite.digest, language.GENERATOR_VERSION, seed_set)

    def build(self, seed: int, stream: Stream) -> Haystack:
        """The haystack of ``seed`` in ``stream``."""
        name = (*self._root, seed, stream.index)
        plants = self._plants(stream, name)
        facts = self._facts(stream, plants, name)
        lines = self.wording.lines([language.needle_line(*fact) for fact in facts])
        lengths = sorted({entry.length for entry in stream.entries})
        filler = _Filler(self.wording, Draw(*name, "filler"))
        rooms = [length - self.reserve for length in lengths]
        laid = lay(self._wishes(stream, plants, facts, lines), rooms, self.suite.bands, filler)
        head = len(self.wording.head)
        needles = []
        for (entry, plant), fact, line, start in zip(plants, facts, lines, laid.starts, strict=True):
            task, length = stream.entries[entry]
            begin = head + start
            needles.append(Needle(task, length, plant.band, fact, begin, begin + len(line), plant.asked))
        return self._assemble(seed, stream, needles, laid, lengths)

    def _plants(self, stream: Stream, name: tuple[str | int, ...]) -> list[tuple[int, Plant]]:
        """(entry index, plant) for every needle of the stream."""
        out = []
        for index, entry in enumerate(stream.entries):
            task = Task(entry.task)
            draw = Draw(*name, "plants", entry.task, entry.length)
            out += [(index, plant) for plant in task.family.plants(task.rung, self.suite.bands, draw)]
        return out

    def _facts(self, stream: Stream, plants: list[tuple[int, Plant]], name: tuple[str | int, ...]) -> list[Fact]:
        """(form, key, value) of each plant: forms and keys are never shared between entries."""
        forms = Draw(*name, "forms").permutation(range(len(words.ATTRIBUTES)))
        tasks = [Task(entry.task) for entry in stream.entries]
        form_base = [0, *itertools.accumulate(t.family.forms(t.rung, self.suite.bands) for t in tasks)]
        key_base = [0, *itertools.accumulate(t.family.keys(t.rung, self.suite.bands) for t in tasks)]
        keys = language.draw_keys(Draw(*name, "keys"), key_base[-1])
        values = language.draw_values(Draw(*name, "values"), len(plants))
        return [
            Fact(forms[form_base[entry] + plant.form], keys[key_base[entry] + plant.key], value)
            for (entry, plant), value in zip(plants, values, strict=True)
        ]

    def _wishes(
        self, stream: Stream, plants: list[tuple[int, Plant]], facts: list[Fact], lines: list[list[int]]
    ) -> list[Wish]:
        last = {fact[:2]: i for i, fact in enumerate(facts)}
        wishes = []
        for i, ((entry, plant), fact, line) in enumerate(zip(plants, facts, lines, strict=True)):
            final = last[fact[:2]]
            room = stream.entries[entry].length - self.reserve
            wishes.append(Wish(line, room, plant.depth, plant.band, None if final == i else final))
        return wishes

    def _assemble(self, seed: int, stream: Stream, needles: list[Needle], laid: Laid, lengths: list[int]) -> Haystack:
        start = len(self.wording.head)
        tokens = self.wording.head + laid.tokens
        ends = {length: start + laid.ends[length - self.reserve] for length in lengths}
        asked = [needle for needle in needles if needle.asked]
        questions = self.wording.questions([language.question_line(n.fact.form, n.fact.key) for n in asked])
        digests = {length: _hasher(tokens[:end]) for length, end in ends.items()}
        probes = [
            self._probe(seed, stream, needle, tail, needles, ends[needle.length], digests[needle.length].copy(), arm)
            for arm in self.suite.arms
            for needle, tail in zip(asked, questions, strict=True)
        ]
        contexts = [self._context(seed, stream, length, ends[length], needles) for length in lengths]
        return Haystack(seed, stream.index, tokens, start, contexts, ends, probes)

    def _probe(
        self,
        seed: int,
        stream: Stream,
        needle: Needle,
        tail: list[int],
        needles: list[Needle],
        end: int,
        hasher: hashlib._Hash,
        arm: str,
    ) -> Probe:
        start = len(self.wording.head)
        inside = [n for n in needles if n.end <= end]
        hasher.update(_packed(tail))
        cell = Cell(needle.task, needle.length, needle.band, arm)
        return Probe(
            trial_id=_short_id(*self._root, seed, stream.index, *cell),
            cell=cell,
            needle=needle,
            depth=(needle.start - start) / (end - start),
            same_form=sum(n.fact.form == needle.fact.form for n in inside),
            facts=len(inside),
            tail=tail,
            prompt_sha256=hasher.hexdigest(),
        )

    def _context(self, seed: int, stream: Stream, length: int, end: int, needles: list[Needle]) -> Context:
        start = len(self.wording.head)
        spans = [
            [n.start, n.end, n.task, n.length, n.band, words.ATTRIBUTES[n.fact.form]] for n in needles if n.end <= end
        ]
        return Context(
            context_id=self.context_id(seed, stream, length),
            seed=seed,
            stream=stream.index,
            length=length,
            context_start=start,
            context_tokens=end - start,
            needle_spans=json.dumps(spans),
        )

    def context_id(self, seed: int, stream: Stream, length: int) -> str:
        """Name of one context; the same for every model that shares the tokenizer."""
        return _short_id(*self._root, "context", seed, stream.index, length)


class _Filler:
    """An endless stream of filler lines in token ids, drawn and tokenized once however often it is read."""

    def __init__(self, wording: Wording, draw: Draw) -> None:
        self._wording = wording
        self._draw = draw
        self._lines: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        for i in itertools.count():
            if i == len(self._lines):
                self._lines += self._wording.lines([language.filler_line(self._draw) for _ in range(BLOCK)])
            yield self._lines[i]


def _packed(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def _hasher(tokens: list[int]) -> hashlib._Hash:
    return hashlib.sha256(_packed(tokens))


def _short_id(*parts: str | int) -> str:
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()[:16]
