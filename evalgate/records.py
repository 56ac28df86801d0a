"""The records that a run leaves behind: trials, contexts and the manifest.

Records know nothing of models, files or verdicts; every other part speaks in them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

MANIFEST_SCHEMA_VERSION: Literal[1] = 1


class Outcome(StrEnum):
    """What became of one trial. Only ``CORRECT`` counts 1; ``ERROR`` counts against both verdicts."""

    CORRECT = "correct"
    WRONG = "wrong"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    ERROR = "error"


class Cell(NamedTuple):
    """What a threshold speaks of: task x length x band x arm."""

    task: str
    length: int
    band: str
    arm: str = "default"

    def __str__(self) -> str:
        arm = "" if self.arm == "default" else f" · {self.arm}"
        return f"{self.task} · {self.length} · {self.band}{arm}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One question on one context, all-or-nothing; one row of ``trials.parquet``."""

    trial_id: str
    """sha256 (first 16 hex digits) of (seed, stream, task, length, band, arm)"""
    context_id: str
    seed: int
    """Index of the haystack in its seed set, 0-based: the order in which the gate counts."""
    stream: int
    task: str
    form: str
    length: int
    band: str
    depth: float
    """(needle start - context start) / C_L"""
    needle_start: int
    """Token index in the final prompt, counted from prompt token 0."""
    needle_end: int
    arm: str
    same_form_in_context: int
    facts_in_context: int
    prompt_sha256: str
    """sha256 of the final token ids (uint32 little-endian)."""
    expected: str
    """The wanted values, as ``scorer`` reads them."""
    answer: str
    outcome: Outcome
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str
    """``stop``, ``length`` or ``error``"""
    latency_s: float
    batch_id: str
    attempt: int
    scorer: str = "number"
    """Which scorer judged the answer: ``number``, ``count``, ``word``, ``uuid``, ``key``, ``absent``, ``text``."""
    batch_row: int = 0
    """Place in its batch, 0-based."""
    error: str = ""
    """Code of what came in place of an answer, such as ``timeout`` or ``http-500``; empty: an answer came."""
    first_token_s: float = 0.0
    """Seconds from the request to the first words of the answer; 0: not measured."""

    @property
    def cell(self) -> Cell:
        """The cell that this trial belongs to."""
        return Cell(self.task, self.length, self.band, self.arm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One context that was asked; one row of ``contexts.parquet``."""

    context_id: str
    seed: int
    stream: int
    length: int
    context_start: int
    """Tokens of the prompt before the context (s)."""
    context_tokens: int
    """C_L"""
    needle_spans: str
    """JSON list of [start, end, task, length, band, form] for every needle in the context."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DocumentId(_Strict):
    """Identity of a versioned document (suite, profile, policy) as it was used."""

    name: str
    version: str
    digest: str


class ModelId(_Strict):
    """Identity of the weights and the tokenizer."""

    name: str
    """As the user named it."""
    architecture: str
    parameters: int
    weights_sha256: str
    config_sha256: str
    tokenizer_sha256: str


class EngineId(_Strict):
    """The backend and its *effective* settings, as read back after they were applied."""

    backend: str
    version: str
    dtype: str
    device: str = "cpu"
    """Where it computed; runs of before there was a choice computed on ``cpu``."""
    arm_paths: dict[str, str]
    """arm -> path taken (``fork``, ``cold`` ...)."""
    effective_profile: dict[str, object]
    """The profile's sections as the engine reports them, not as they were asked for."""
    bytes_per_session: dict[str, int]
    """Measured bytes at the longest length of the suite: ``state``, ``kv``, ``conv``, ``total``."""


class Schedule(_Strict):
    """How far a run that is drawn look by look has asked each cell; what it stopped asking was decided by then."""

    policy: DocumentId
    """Whose looks they are."""
    baseline: str | None
    """``run_id`` of the baseline that the run was compared with at each look."""
    asked: list[int]
    """For each of the manifest's ``cells``: its seeds 0 .. asked-1 are planned, and no others."""


class CorpusId(_Strict):
    """The documents that filler was taken from."""

    sha256: str
    documents: int
    lines: int
    distinct_share: float
    """Lines that were kept, of all: the rest were said before."""


class QuestionsId(_Strict):
    """The user's own questions."""

    sha256: str
    questions: int


AnswerRule = Literal["redact", "drop", "keep"]


class TextRule(_Strict):
    """What becomes of the texts that a model wrote; prompts are never kept."""

    answers: AnswerRule
    """``redact``: kept without secrets and personal data; ``drop``: never written; ``keep``: as they are."""
    days: int | None = Field(default=None, ge=0)
    """Days after which `evalgate runs prune` removes them; None: they stay."""

    def __str__(self) -> str:
        return self.answers if self.days is None else f"{self.answers}, {self.days} days"


class Flip(_Strict):
    """A trial that another scorer judged otherwise."""

    trial_id: str
    before: str
    after: str


class Rescored(_Strict):
    """Which run the answers of a rescored run are of."""

    run_id: str
    scorer: str
    """Version of the scorer that judged it."""
    trials_sha256: str
    """Digest of its ``trials.parquet``."""
    flips: list[Flip]
    left: int
    """Trials that kept their outcome because something was redacted from their answers."""
    at: str
    """UTC, ISO 8601."""


class Manifest(_Strict):
    """``manifest.json``: full identity of suite x model x profile x backend, and what the run holds."""

    schema_version: Literal[1] = MANIFEST_SCHEMA_VERSION
    run_id: str
    status: Literal["running", "complete", "partial", "failed"]
    suite: DocumentId
    suite_body: dict[str, object]
    profile: DocumentId
    profile_body: dict[str, object]
    """The profile as it was asked for, so that a judge need not have its file."""
    model: ModelId
    engine: EngineId
    generator_version: str
    reserve_tokens: int
    """R: template + longest question + answer budget, in tokens."""
    seed_set: str
    seeds: int
    """Number of haystack seeds planned: 0 .. seeds-1; under a schedule so far."""
    haystacks: int | None = None
    """Haystacks planned, seeds x streams or those that a schedule asks; None in a manifest that does not say."""
    cells: list[tuple[str, int, str, str]]
    """Every cell that the plan asks, so that a missing one is seen."""
    corpus: CorpusId | None = None
    """None: filler is the grammar's."""
    questions: QuestionsId | None = None
    """None: every question is a family's."""
    compiled: str | None = None
    """sha256 of the compiled suite that haystacks were read from; None: they were built."""
    schedule: Schedule | None = None
    """None: every cell is asked every seed."""
    packages: dict[str, str] = Field(default_factory=dict)
    """Other packages that tasks and haystack are of -> their versions."""
    rescored: Rescored | None = None
    """None: the scorer judged the answers as they came."""
    data_class: str
    text: TextRule | None = None
    """What became of answers; None in a manifest that does not say: they were kept."""
    text_removed: str | None = None
    """When the answers were removed after their time."""
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    finished: str | None = None
    wall_s: float | None = None
    files: dict[str, str] = Field(default_factory=dict)
    """sha256 of each result file; empty until results were merged once. While they are replaced, ``before/NAME`` is
    what the file was until then."""


TRIAL_FIELDS = tuple(f.name for f in dataclasses.fields(Trial))
CONTEXT_FIELDS = tuple(f.name for f in dataclasses.fields(Context))
