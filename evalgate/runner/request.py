"""What a run was asked to do, and everything that is checked before the first token."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from evalgate.backends.base import Backend, TokenizerPort, check_arms
from evalgate.backends.load_options import LoadOptions
from evalgate.backends.registry import open_backend
from evalgate.backends.server_options import ServerOptions
from evalgate.data_class import DataClass, check_limits
from evalgate.errors import DoesNotFitError, RefusedError
from evalgate.gates.profile import Profile, load_profile
from evalgate.records import AnswerRule, TextRule
from evalgate.redaction import NOT_KEPT, Redactor
from evalgate.runner.guards import Guards
from evalgate.tasks.compiled import ENDING, Compiled
from evalgate.tasks.haystack import Builder
from evalgate.tasks.packing import Stream
from evalgate.tasks.source import Source
from evalgate.tasks.suite import Suite, load_suite

BACKEND_LIMITS = {"native": DataClass.RESTRICTED, "hf": DataClass.RESTRICTED}
"""What a backend may see: those that run in this process send nothing anywhere; any other may see public text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A suite x model x profile x backend, and how many seeds of which seed set."""

    suite: str
    model: str
    profile: str = "full"
    backend: str = "native"
    dtype: str = "fp32"
    device: str = "cpu"
    seeds: int = 100
    seed_set: str = "main"
    backend_limit: DataClass | None = None
    """Most confidential text that the backend may see; None: as `BACKEND_LIMITS` has it."""
    store_limit: DataClass = DataClass.INTERNAL
    """Most confidential text whose answers may lie in the run folder."""
    answers: AnswerRule | None = None
    """None: redacted, and dropped where the suite is more than internal."""
    days: int | None = None
    """Days for which answers are kept."""
    redact: tuple[str, ...] = ()
    """Regular expressions of what answers must not keep, beside what is always looked for."""
    thinking_tokens: int | None = None
    """Most tokens of reasoning before an answer; None: as the suite has it."""
    server: ServerOptions | None = None
    """How a server is reached; None: the backend is none."""
    load: LoadOptions | None = None
    """Arguments for the library that loads the model; None: none, or it is the engine."""

    def __post_init__(self) -> None:
        if not self.model.strip():
            # A folder of no name is the working folder, which nobody means.
            raise RefusedError(f"--model {self.model!r}: expected an embedded model, a checkpoint folder or a hub id")
        if self.seeds < 1:
            raise RefusedError(f"--seeds {self.seeds}: expected at least 1")
        if self.days is not None and self.days < 0:
            raise RefusedError(f"--keep-days {self.days}: expected 0 or more")
        if self.thinking_tokens is not None and self.thinking_tokens < 0:
            raise RefusedError(f"--thinking-tokens {self.thinking_tokens}: expected 0 or more")
        check_seed_set(self.seed_set)


def check_seed_set(name: str) -> None:
    """Raise RefusedError for a name that no seed set may have."""
    if not name or any(c.isspace() or c in "/\\" for c in name):
        raise RefusedError(f"--seed-set {name!r}: expected a name without blanks or slashes")


@dataclass(frozen=True, slots=True)
class Bench:
    """A request made real: documents loaded, weights loaded, haystacks ready to be built."""

    request: RunRequest
    suite: Suite
    profile: Profile
    backend: Backend
    source: Source
    text: TextRule
    redactor: Redactor
    guards: Guards | None = None
    """None: the suite has no tasks of lm-eval."""

    @property
    def streams(self) -> list[Stream]:
        """What is asked of every seed: the source's haystacks, then a document of each guard."""
        return [*self.source.streams, *(self.guards.streams if self.guards is not None else ())]

    def kept(self, answer: str, made_up: Collection[str]) -> str:
        """What is written of an answer; ``made_up`` are values of needles, which stay."""
        if self.text.answers == "keep" or not answer:
            return answer
        return NOT_KEPT if self.text.answers == "drop" else self.redactor(answer, made_up)


def prepare(request: RunRequest) -> Bench:
    """Load and check everything that a run needs.

    Raises UnknownNameError, InvalidDocumentError, TamperedError (documents), CheckpointError (weights),
    UnsupportedError (profile, arm), DoesNotFitError (window, memory, too short for the needles) and RefusedError (a
    suite above the limit of backend or store).
    """
    suite = load_suite(request.suite).thinking(request.thinking_tokens)
    redactor = Redactor(request.redact)
    _check_class(suite, request)
    profile = load_profile(request.profile)
    backend = open_backend(
        request.backend,
        request.model,
        profile.sections,
        profile.name,
        dtype=request.dtype,
        device=request.device,
        max_tokens=suite.lengths[-1],
        server=request.server,
        load=request.load,
    )
    longest = suite.lengths[-1]
    if longest > backend.window:
        fitting = [length for length in suite.lengths if length <= backend.window]
        advice = f"lengths that fit: {fitting}" if fitting else "no length of the suite fits"
        raise DoesNotFitError(
            f"suite {suite.ref} asks {longest} tokens, model {request.model} has a window of {backend.window}; {advice}"
        )
    check_arms(suite.arms, backend.arms())
    source = open_source(request.suite, suite, backend.tokenizer, request.seed_set)
    guards = None
    if suite.lm_eval is not None:
        guards = Guards(suite, backend, request.seed_set, len(source.streams))
    return Bench(request, suite, profile, backend, source, _text_rule(suite, request), redactor, guards)


def open_source(ref: str, suite: Suite, tokenizer: TokenizerPort, seed_set: str) -> Source:
    """The haystacks of ``suite``, which ``ref`` named: read from a compiled file, else built.

    Raises RefusedError: compiled for another tokenizer, seed set or room for reasoning.
    """
    if not ref.endswith(ENDING):
        return Builder(suite, tokenizer, seed_set)
    compiled = Compiled(Path(ref))
    compiled.check(tokenizer.sha256, seed_set)
    if compiled.suite.digest != suite.digest:
        raise RefusedError(
            f"{ref} was compiled with --thinking-tokens {compiled.suite.decoding.thinking_tokens}, asked for "
            f"{suite.decoding.thinking_tokens}; compile it anew, or leave the option out"
        )
    return compiled


def check_seeds(bench: Bench, seeds: int) -> None:
    """Raise RefusedError where the suite's haystacks do not last for ``seeds``."""
    if bench.guards is not None and seeds > bench.guards.most_seeds:
        raise RefusedError(
            f"{seeds} seeds ask {seeds} documents of each task of lm-eval, and the smallest has "
            f"{bench.guards.most_seeds}; ask at most so many, or leave that task out"
        )
    most = bench.source.most_seeds
    if most is None or seeds <= most:
        return
    if bench.source.compiled is not None:
        raise RefusedError(
            f"{seeds} seeds are asked, and {bench.request.suite} holds {most}; ask at most {most}, or compile the "
            "suite with more --seeds"
        )
    raise RefusedError(
        f"{seeds} seeds would ask a question twice in one cell, which is no new evidence: the questions of suite "
        f"{bench.suite.ref} last for {most} seeds; ask at most {most}, or add questions"
    )


def _check_class(suite: Suite, request: RunRequest) -> None:
    """Raise RefusedError where the suite's text may not go to the backend or into the run folder."""
    backend = request.backend_limit or BACKEND_LIMITS.get(request.backend, DataClass.PUBLIC)
    limits = {
        f"backend {request.backend}": (backend, "--backend-limit"),
        "the run folder": (request.store_limit, "--store-limit"),
    }
    check_limits(suite.haystack.data_class, f"suite {suite.ref}", limits)


def _text_rule(suite: Suite, request: RunRequest) -> TextRule:
    usual: AnswerRule = "drop" if suite.haystack.data_class.exceeds(DataClass.INTERNAL) else "redact"
    return TextRule(answers=request.answers or usual, days=request.days)
