"""Negative controls: runs whose right outcome is known, by the same path that every run takes."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, cast

from evalgate.backends.base import Answer, Backend, Group, TokenizerPort
from evalgate.records import EngineId, ModelId
from evalgate.runner.request import Bench
from evalgate.tasks.haystack import Haystack
from evalgate.tasks.packing import Stream
from evalgate.tasks.source import Source

ELSEWHERE = 1_000_000
"""Added to a seed: the haystack that lacks its needles."""


def scripted(bench: Bench, control: Literal["oracle", "shuffled"]) -> Bench:
    """A bench that answers without the model: with the right values, or with those of other needles."""
    source = _Remembering(bench.source)
    backend = _Scripted(bench.backend, source, shift=control == "shuffled")
    return dataclasses.replace(bench, source=cast("Source", source), backend=backend)


def absent(bench: Bench) -> Bench:
    """A bench that asks the model about needles that are not in the context."""
    return dataclasses.replace(bench, source=cast("Source", _Absent(bench.source)))


class _Wrapped:
    """A source that is another's in all but what it builds."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class _Remembering(_Wrapped):
    """Keeps the values of the haystack that was built last."""

    values: dict[str, str]

    def build(self, seed: int, stream: Stream) -> Haystack:
        haystack = self._source.build(seed, stream)
        self.values = {probe.trial_id: str(probe.wanted) for probe in haystack.probes}
        return haystack


class _Absent(_Wrapped):
    """Puts the questions of a haystack to the context of another, of the same lengths."""

    def build(self, seed: int, stream: Stream) -> Haystack:
        own, other = self._source.build(seed, stream), self._source.build(seed + ELSEWHERE, stream)
        probes = [
            probe._replace(prompt_sha256=_digest(other.tokens[: other.ends[probe.cell.length]] + probe.tail))
            for probe in own.probes
        ]
        return dataclasses.replace(own, tokens=other.tokens, ends=other.ends, probes=probes)


class _Scripted:
    """A backend that says what it is told to; all else is the real one's."""

    def __init__(self, backend: Backend, source: _Remembering, *, shift: bool) -> None:
        self._backend, self._source, self._shift = backend, source, shift

    @property
    def tokenizer(self) -> TokenizerPort:
        return self._backend.tokenizer

    @property
    def window(self) -> int:
        return self._backend.window

    @property
    def model_window(self) -> int | None:
        return self._backend.model_window

    def identity(self) -> ModelId:
        return self._backend.identity()

    def engine_id(self, longest: int, arms: Sequence[str]) -> EngineId:
        return self._backend.engine_id(longest, arms)

    def arms(self) -> dict[str, str]:
        return self._backend.arms()

    def counters(self) -> dict[str, int]:
        return {}

    def answer(self, group: Group) -> list[Answer]:
        ids, values = list(self._source.values), list(self._source.values.values())
        if self._shift:
            values = [*values[1:], values[0]]
        said = dict(zip(ids, values, strict=True))
        return [
            Answer(
                trial_id=question.trial_id,
                token_ids=[],
                text=said[question.trial_id],
                finish_reason="stop",
                prompt_tokens=question.expected_prompt_tokens,
                cached_tokens=0,
                latency_s=0.0,
                batch_id="control",
            )
            for ask in group.asks
            for question in ask.questions
        ]

    def answer_all(self, groups: Iterable[Group]) -> Iterator[list[Answer]]:
        return map(self.answer, groups)


def _digest(tokens: list[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest()
