"""Suites compiled for one tokenizer: haystacks in a file, and a run's source that reads them from there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evalgate.errors import InvalidDocumentError, RefusedError, TamperedError
from evalgate.haystack_file import HaystackFile, Row, writing
from evalgate.records import Cell, Context, CorpusId, QuestionsId
from evalgate.tasks.haystack import Builder, Haystack, Probe, context_name
from evalgate.tasks.names import GENERATOR_VERSION
from evalgate.tasks.packing import Entry, Stream
from evalgate.tasks.suite import LIBRARY, Suite
from evalgate.tasks.wanted import Wanted

ENDING = ".parquet"
"""By which a compiled suite is told from one that is written."""
FORMAT = 1


def compile_suite(
    builder: Builder, tokenizer_sha256: str, seeds: int, out: Path, report: Callable[[int, int], None]
) -> str:
    """Write seeds 0 .. ``seeds`` - 1 of every stream to ``out``; returns the digest of what is in it.

    ``report`` is told (haystacks, tokens) as they are written.  Raises RefusedError: ``out`` is there, or the suite's
    own questions do not last for so many seeds.
    """
    if builder.most_seeds is not None and seeds > builder.most_seeds:
        raise RefusedError(f"--seeds {seeds}: the questions of the suite last for {builder.most_seeds}; ask for those")
    with writing(out, _header(builder, tokenizer_sha256, seeds)) as writer:
        for seed in range(seeds):
            for stream in builder.streams:
                # Nothing holds a haystack while the next one is built.
                report(1, writer.write(_row(builder.build(seed, stream))))
        return writer.finish()


class Compiled:
    """A source of haystacks that reads a file."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidDocumentError or TamperedError: no compiled suite of this version, or not as it was written."""
        self._file = HaystackFile(path)
        header = self._file.header
        if header.get("format") != FORMAT or header["generator_version"] != GENERATOR_VERSION:
            raise InvalidDocumentError(
                f"{path}: compiled as format {header.get('format')}, generator {header.get('generator_version')}; "
                f"expected {FORMAT} and {GENERATOR_VERSION}; compile the suite again"
            )
        self.suite = Suite.model_validate(header["suite"])
        if self.suite.digest != header["suite_sha256"]:
            raise TamperedError(f"{path}: the suite in it is not {header['suite_sha256'][:12]}; compile it again")
        LIBRARY.check_released(self.suite)
        self.streams = [
            Stream(index, tuple(Entry(*entry) for entry in entries)) for index, entries in enumerate(header["streams"])
        ]
        self.seed_set: str = header["seed_set"]
        self.tokenizer_sha256: str = header["tokenizer_sha256"]
        self.compiled = self._file.sha256
        self.reserve: int = header["reserve"]
        self.tail_tokens: int = header["tail_tokens"]
        self.needle_tokens: int = header["needle_tokens"]
        self.most_seeds: int | None = header["seeds"]
        self.corpus_id = None if header["corpus"] is None else CorpusId(**header["corpus"])
        self.questions_id = None if header["questions"] is None else QuestionsId(**header["questions"])
        self._root = header["root"]

    def check(self, tokenizer_sha256: str, seed_set: str | None) -> None:
        """Raise RefusedError unless it was compiled for this tokenizer and seed set (None: whichever it holds)."""
        path = self._file.path
        if tokenizer_sha256 != self.tokenizer_sha256:
            raise RefusedError(
                f"{path} was compiled for another tokenizer: found {tokenizer_sha256[:12]}, "
                f"expected {self.tokenizer_sha256[:12]}; compile the suite with --model of this one"
            )
        if seed_set not in (None, self.seed_set):
            raise RefusedError(
                f"{path} holds seed set {self.seed_set!r}, asked for {seed_set!r}; give --seed-set {self.seed_set}"
            )

    def build(self, seed: int, stream: Stream) -> Haystack:
        """Read the haystack of ``seed`` in ``stream``."""
        row = self._file.read(seed, stream.index)
        return _haystack(row)

    def context_id(self, seed: int, stream: Stream, length: int) -> str:
        """Name of one context, as :meth:`Builder.context_id` gives it."""
        return context_name(self._root, seed, stream, length)


def _header(builder: Builder, tokenizer_sha256: str, seeds: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "suite": builder.suite.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "suite_sha256": builder.suite.digest,
        "generator_version": GENERATOR_VERSION,
        "tokenizer_sha256": tokenizer_sha256,
        "seed_set": builder.seed_set,
        "seeds": seeds,
        "reserve": builder.reserve,
        "tail_tokens": builder.tail_tokens,
        "needle_tokens": builder.needle_tokens,
        "streams": [[list(entry) for entry in stream.entries] for stream in builder.streams],
        "corpus": None if builder.corpus_id is None else builder.corpus_id.model_dump(),
        "questions": None if builder.questions_id is None else builder.questions_id.model_dump(),
        "root": list(builder.root),
    }


def _row(haystack: Haystack) -> Row:
    return Row(haystack.seed, haystack.stream, haystack.tokens, _body(haystack))


def _body(haystack: Haystack) -> str:
    probes = [
        [*probe[:1], list(probe.cell), [probe.wanted.scorer, list(probe.wanted.values)], *probe[3:]]
        for probe in haystack.probes
    ]
    body = {
        "context_start": haystack.context_start,
        "contexts": [dataclasses.asdict(context) for context in haystack.contexts],
        "ends": sorted(haystack.ends.items()),
        "probes": probes,
    }
    return json.dumps(body, ensure_ascii=False, allow_nan=False)


def _haystack(row: Row) -> Haystack:
    body = json.loads(row.body)
    return Haystack(
        seed=row.seed,
        stream=row.stream,
        tokens=list(row.tokens),
        context_start=body["context_start"],
        contexts=[Context(**context) for context in body["contexts"]],
        ends=dict(body["ends"]),
        probes=[_probe(probe) for probe in body["probes"]],
    )


def _probe(fields: Sequence[Any]) -> Probe:
    trial_id, cell, (scorer, values), *rest = fields
    return Probe(trial_id, Cell(*cell), Wanted(scorer, tuple(values)), *rest)
