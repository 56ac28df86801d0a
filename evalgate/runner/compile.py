"""Compiling a suite in the tokens of a model, without its weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from evalgate.backends.models import find_model
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.errors import RefusedError
from evalgate.runner.request import check_seed_set
from evalgate.runner.run import Progress
from evalgate.tasks.compiled import ENDING, compile_suite
from evalgate.tasks.haystack import Builder
from evalgate.tasks.suite import load_suite


class Made(NamedTuple):
    """What a compiled suite holds."""

    suite: str
    sha256: str
    haystacks: int
    tokens: int


def compile_to(
    suite: str,
    model: str,
    out: Path,
    *,
    seeds: int,
    seed_set: str,
    thinking: int | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> Made:
    """Compile ``suite`` for the tokenizer of ``model`` into ``out``.

    Raises RefusedError (a file that is there or has another ending, a suite that is compiled already), StorageError,
    and what building raises.
    """
    if not out.name.endswith(ENDING):
        raise RefusedError(f"--out {out}: expected a name that ends in {ENDING}, by which a compiled suite is known")
    if suite.endswith(ENDING):
        raise RefusedError(f"{suite} is compiled already; name the suite that it was made of")
    check_seed_set(seed_set)
    tokenizer = ModelTokenizer(find_model(model))
    builder = Builder(load_suite(suite).thinking(thinking), tokenizer, seed_set)
    state = Progress(0, seeds * len(builder.streams), 0, 0, 0.0)
    started = time.monotonic()

    def told(haystacks: int, tokens: int) -> None:
        nonlocal state
        done, seconds = state.done + haystacks, time.monotonic() - started
        state = Progress(done, state.total, done, state.tokens + tokens, seconds)
        report(state)

    sha256 = compile_suite(builder, tokenizer.sha256, seeds, out, told)
    return Made(builder.suite.ref, sha256, state.done, state.tokens)
