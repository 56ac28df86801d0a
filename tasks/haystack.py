"""A haystack: one seed of one stream, with the contexts that are cut from it and the questions asked of them.

The same (suite digest, generator version, seed set, seed, stream, tokenizer) gives the same tokens on any machine,
whatever was built before.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from evalgate.errors import DoesNotFitError, RefusedError
from evalgate.records import Cell, Context, CorpusId, QuestionsId
from evalgate.tasks import names
from evalgate.tasks.casting import Casting, Name, Part
from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Query, Statement
from evalgate.tasks.items import plain
from evalgate.tasks.layout import Laid, Wish, lay
from evalgate.tasks.packing import Budget, Entry, Stream, pack, register_of
from evalgate.tasks.placement import Edges
from evalgate.tasks.prompt import Tokenizer, Wording
from evalgate.tasks.registers import REGISTERS, Taken, filler_sentence
from evalgate.tasks.suite import Suite
from evalgate.tasks.task import Task
from evalgate.tasks.wanted import Wanted

TRAINING_SET = "train"
BLOCK = 256
"""Filler lines that are tokenized together."""


class Needle(NamedTuple):
    """One statement as it lies in a haystack; ``start`` and ``end`` count from prompt token 0."""

    task: str
    length: int
    band: str
    form: str
    start: int
    end: int


class Probe(NamedTuple):
    """One question on one context: everything about a trial that is known before it is asked."""

    trial_id: str
    cell: Cell
    wanted: Wanted
    form: str
    start: int
    """Where what it asks for begins, and where it ends, counted from prompt token 0."""
    end: int
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


class _Asked(NamedTuple):
    """A question whose needles were laid."""

    entry: Entry
    query: Query
    needles: list[Needle]


class Builder:
    """Builds the haystacks of one suite for one tokenizer."""

    def __init__(self, suite: Suite, tokenizer: Tokenizer, seed_set: str) -> None:
        if seed_set == TRAINING_SET:
            raise RefusedError(f"seed set {TRAINING_SET!r} is reserved for training models; choose another name")
        self.suite = suite
        self.seed_set = seed_set
        self.corpus = suite.haystack.read()
        self.items = None if suite.questions is None else suite.questions.read()
        self.wording = Wording(suite, tokenizer, self.corpus, self.items)
        self.reserve = self.wording.reserve()
        self.streams = pack(suite, Budget(self.reserve, self.wording.statement_tokens, self.wording.filler_tokens))
        self._check_placement()
        self.root: Name = (suite.digest, names.GENERATOR_VERSION, seed_set)
        if self.corpus is not None:
            self.root = (*self.root, self.corpus.sha256)
        if self.items is not None:
            self.root = (*self.root, self.items.sha256)
        self.casting = Casting(suite, self.wording, self.items, self.root)

    def build(self, seed: int, stream: Stream) -> Haystack:
        """The haystack of ``seed`` in ``stream``."""
        name: Name = (*self.root, seed, stream.index)
        parts = self.casting.parts(seed, stream)
        statements = [(part, statement) for part in parts for statement in part.script.statements]
        lines = self.wording.lines(self._framed(stream, statements, name))
        lengths = sorted({entry.length for entry in stream.entries})
        rooms = [length - self.reserve for length in lengths]
        wishes = self._wishes(parts, lines, Draw(*name, "edges"))
        laid = lay(wishes, rooms, self.suite.bands, _Filler(self.wording, self._sentences(stream, parts, name)))
        head = len(self.wording.head)
        needles = [
            Needle(
                part.entry.task,
                part.entry.length,
                statement.band or "",
                part.form(statement.form),
                head + start,
                head + start + len(line),
            )
            for (part, statement), line, start in zip(statements, lines, laid.starts, strict=True)
        ]
        return self._assemble(seed, stream, parts, needles, laid, lengths)

    def _framed(self, stream: Stream, statements: list[tuple[Part, Statement]], name: Name) -> list[str]:
        draw = Draw(*name, "frames")
        register = REGISTERS[register_of(self.suite, stream.entries[0])]
        return [
            register.line(draw, self.wording.phrases, statement.text) if statement.framed else statement.text + "\n"
            for _, statement in statements
        ]

    def _sentences(self, stream: Stream, parts: list[Part], name: Name) -> Iterator[str]:
        """Filler lines without end; none of a document's answers a question of the user's own."""
        asked = [item for part in parts for item in part.cast.items[: len(self.suite.bands)]]
        answers = [said for item in asked for said in item.said()]
        for line in self._written(stream, parts, name):
            if not answers or not any(said in plain(line) for said in answers):
                yield line

    def _written(self, stream: Stream, parts: list[Part], name: Name) -> Iterator[str]:
        draw, phrases = Draw(*name, "filler"), self.wording.phrases
        task = Task(stream.entries[0].task)
        if task.family.own_filler:
            for sentence in task.family.filler(task.rung, draw, parts[0].cast):
                yield sentence + "\n"
        if self.corpus is not None and task.register is None:
            values = [value for part in parts for value in part.cast.values]
            for sentence in self.corpus.sentences(draw):
                if not any(value in sentence for value in values):
                    yield sentence + "\n"
        register = register_of(self.suite, stream.entries[0])
        whole = [part for part in parts if Task(part.entry.task).family.asks_every_fact]
        taken = Taken(
            frozenset(key for part in parts for key in part.cast.keys),
            frozenset(form for part in whole for form in part.cast.forms),
        )
        while True:
            sentence = filler_sentence(register, self.suite.haystack.language, phrases, draw, taken)
            yield REGISTERS[register].line(draw, phrases, sentence)

    def _wishes(self, parts: list[Part], lines: list[list[int]], draw: Draw) -> list[Wish]:
        wishes: list[Wish] = []
        for part in parts:
            first, room = len(wishes), part.entry.length - self.reserve
            for statement in part.script.statements:
                line = lines[len(wishes)]
                before = None if statement.before is None else first + statement.before
                exact = self._exact(statement, len(line), room, draw)
                wishes.append(Wish(line, room, statement.depth, statement.band, before, exact))
        return wishes

    def _exact(self, statement: Statement, tokens: int, room: int, draw: Draw) -> int | None:
        """Token of the context at which a statement must begin, where the suite places needles at edges."""
        placement = self.suite.placement
        if statement.band is None or not isinstance(placement, Edges):
            return None
        start, end = self._span(statement.band, room)
        head = len(self.wording.head)
        at = placement.snap(draw, head + statement.depth * room, tokens, start, end)
        assert at is not None, f"checked: an edge of {placement.every} lies in [{start}, {end})"
        return at - head

    def _span(self, band: str, room: int) -> tuple[int, int]:
        """Prompt tokens [start, end) of a band, wherever its context ends."""
        low, high = self.suite.bands[band]
        head = len(self.wording.head)
        # A context ends up to 2% before its room does, and no needle may leave its band by that.
        return head + int(low * room) + 1, head + int(high * 0.98 * room) - 1

    def _check_placement(self) -> None:
        """Raise DoesNotFitError where a band of a length holds no edge that the suite asks for."""
        placement = self.suite.placement
        if not isinstance(placement, Edges):
            return
        for length in self.suite.lengths:
            for band in self.suite.bands:
                start, end = self._span(band, length - self.reserve)
                if placement.snap(Draw("edges"), start, self.wording.needle_tokens, start, end) is None:
                    raise DoesNotFitError(
                        f"placement.every {placement.every}: no multiple lies in band {band!r} of length {length}; ask "
                        "longer lengths, wider bands or smaller multiples"
                    )

    def _assemble(
        self, seed: int, stream: Stream, parts: list[Part], needles: list[Needle], laid: Laid, lengths: list[int]
    ) -> Haystack:
        start = len(self.wording.head)
        tokens = self.wording.head + laid.tokens
        ends = {length: start + laid.ends[length - self.reserve] for length in lengths}
        asked, first = [], 0
        for part in parts:
            own = needles[first : first + len(part.script.statements)]
            first += len(own)
            asked += [_Asked(part.entry, query, [own[i] for i in query.about]) for query in part.script.queries]
        digests = {length: _hasher(tokens[:end]) for length, end in ends.items()}
        probes = [
            self._probe(seed, stream, ask, tail, needles, ends[ask.entry.length], digests[ask.entry.length].copy(), arm)
            for arm in self.suite.arms
            if (arm == "isolated") == stream.isolated
            for ask, tail in zip(asked, self._tails(asked, arm, (*self.root, seed, stream.index)), strict=True)
        ]
        contexts = [self._context(seed, stream, length, ends[length], needles) for length in lengths]
        return Haystack(seed, stream.index, tokens, start, contexts, ends, probes)

    def _tails(self, asked: list[_Asked], arm: str, name: Name) -> list[list[int]]:
        """What follows the context in each prompt: the question, under ``turns`` after those asked before it."""
        if arm != "turns":
            return self.wording.questions([ask.query.text for ask in asked])
        tails: list[list[int]] = [[] for _ in asked]
        said: dict[int, list[tuple[str, str]]] = {}
        for i in Draw(*name, "turns").permutation(range(len(asked))):
            before = said.setdefault(asked[i].entry.length, [])
            query = asked[i].query
            tails[i] = self.wording.turns(before, query.text)
            before.append((query.text, str(query.wanted)))
        return tails

    def _probe(
        self,
        seed: int,
        stream: Stream,
        ask: _Asked,
        tail: list[int],
        needles: list[Needle],
        end: int,
        hasher: hashlib._Hash,
        arm: str,
    ) -> Probe:
        start = len(self.wording.head)
        inside = [needle for needle in needles if needle.end <= end]
        hasher.update(_packed(tail))
        cell = Cell(ask.entry.task, ask.entry.length, ask.query.band, arm)
        whole = ask.query.band not in self.suite.bands
        about = ask.needles[: None if whole else 1]
        begin = min((needle.start for needle in about), default=start)
        form = about[0].form if about else ""
        return Probe(
            trial_id=_short_id(*self.root, seed, stream.index, *cell),
            cell=cell,
            wanted=ask.query.wanted,
            form=form,
            start=begin,
            end=max((needle.end for needle in about), default=end),
            depth=(begin - start) / (end - start),
            same_form=sum(needle.form == form for needle in inside),
            facts=len(inside),
            tail=tail,
            prompt_sha256=hasher.hexdigest(),
        )

    def _context(self, seed: int, stream: Stream, length: int, end: int, needles: list[Needle]) -> Context:
        start = len(self.wording.head)
        spans = [[n.start, n.end, n.task, n.length, n.band, n.form] for n in needles if n.end <= end]
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
        return context_name(self.root, seed, stream, length)

    @property
    def tail_tokens(self) -> int:
        """The longest that can stand between the context and the answer."""
        return self.wording.tail_tokens

    @property
    def needle_tokens(self) -> int:
        """The longest line that states anything."""
        return self.wording.needle_tokens

    @property
    def most_seeds(self) -> int | None:
        """Seeds after which a cell would be asked a question again; None: names never run out."""
        return self.casting.most_seeds

    @property
    def corpus_id(self) -> CorpusId | None:
        """The documents that filler is taken from."""
        return None if self.corpus is None else self.corpus.identity

    @property
    def questions_id(self) -> QuestionsId | None:
        """The user's own questions."""
        return None if self.items is None else QuestionsId(sha256=self.items.sha256, questions=len(self.items.items))

    @property
    def compiled(self) -> None:
        """It builds what it gives."""
        return None


def context_name(root: Sequence[str | int], seed: int, stream: Stream, length: int) -> str:
    """Name of one context of the haystacks that are called ``root``."""
    return _short_id(*root, "context", seed, stream.index, length)


class _Filler:
    """Filler lines without end in token ids, drawn and tokenized once however often they are read."""

    def __init__(self, wording: Wording, sentences: Iterator[str]) -> None:
        self._wording = wording
        self._sentences = sentences
        self._lines: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        for i in itertools.count():
            if i == len(self._lines):
                self._lines += self._wording.fillers(list(itertools.islice(self._sentences, BLOCK)))
            yield self._lines[i]


def _packed(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def _hasher(tokens: list[int]) -> hashlib._Hash:
    return hashlib.sha256(_packed(tokens))


def _short_id(*parts: str | int) -> str:
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()[:16]
