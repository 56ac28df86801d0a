"""Whether a suite can be asked in the tokens of a model: its line limits, its lengths and its packing; no weights."""

from __future__ import annotations

from dataclasses import dataclass

from evalgate.backends.models import find_model
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.runner.request import RunRequest
from evalgate.tasks.haystack import Builder
from evalgate.tasks.suite import Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a suite takes in one tokenizer, in tokens."""

    model: str
    needle_tokens: int
    """The longest needle line that any seed can lay."""
    reserve_tokens: int
    """R: template, longest question and answer budget."""
    streams: list[list[str]]
    """``task·length`` of what shares a haystack."""


def fit_suite(suite: Suite, model: str) -> Fit:
    """Check ``suite`` in the tokenizer of ``model``, as a run does before its first token.

    Raises DoesNotFitError (a line that takes more tokens than its limit, a length too short for its needles),
    UnsupportedError (a tokenizer or template in which positions would be wrong), UnknownNameError, CheckpointError, or
    RefusedError (no model named).
    """
    request = RunRequest(suite=suite.ref, model=model)
    builder = Builder(suite, ModelTokenizer(find_model(model)), request.seed_set)
    return Fit(
        model=model,
        needle_tokens=builder.wording.needle_tokens,
        reserve_tokens=builder.reserve,
        streams=[[f"{entry.task}·{entry.length}" for entry in stream.entries] for stream in builder.streams],
    )
