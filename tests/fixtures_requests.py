"""Requests to an engine and what they have to agree with, for the tests of batches, stored prefixes and preemption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evalgate.engine.llm import LLM
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.request import Request, Result

NEAR = 1e-4
"""Log probabilities from two batch shapes in float32."""


@pytest.fixture(scope="module", params=["hybrid", "mostly-attention", "experts"])
def checkpoint(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Checkpoint:
    """A random model of each shape."""
    return load_checkpoint(tiny_models[request.param])


@pytest.fixture(scope="module")
def hybrid(tiny_models: dict[str, Path]) -> Checkpoint:
    """A random hybrid."""
    return load_checkpoint(tiny_models["hybrid"])


def engine(checkpoint: Checkpoint, **settings: object) -> LLM:
    """A poisoned engine with room for four sessions of 600 tokens, unless told otherwise."""
    defaults: dict[str, object] = {"max_tokens": 600, "max_sessions": 4, "prefill_chunk": 128, "poison": True}
    return LLM(checkpoint, **(defaults | settings))  # type: ignore[arg-type]  # checked by the constructor itself


def words(count: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 300, (count,), generator=generator).tolist()


def ask(tokens: list[int], max_tokens: int = 6, **more: object) -> Request:
    """A request for a few tokens."""
    return Request(tokens=tokens, max_tokens=max_tokens, **more)  # type: ignore[arg-type]  # as the class says


def alone(checkpoint: Checkpoint, request: Request, **settings: object) -> Result:
    """The request in an engine of its own, from nothing, in one piece: what every other path has to agree with."""
    llm = engine(checkpoint, prefix=False, prefill_chunk=1024, **settings)
    session = llm.prefill(request.tokens)
    (fork,) = llm.fork(session)
    return llm.generate([fork], request.max_tokens, request.stop_ids)[0]


def assert_same(found: Result, expected: Result) -> None:
    """The same tokens, ended in the same way, with log probabilities that differ by rounding only."""
    assert (found.tokens, found.finish) == (expected.tokens, expected.finish)
    torch.testing.assert_close(torch.tensor(found.logprobs), torch.tensor(expected.logprobs), atol=NEAR, rtol=0)


def drain(llm: LLM) -> dict[int, Result]:
    """Step until nothing is left, with the books checked at every step."""
    results: dict[int, Result] = {}
    while llm.scheduler.busy:
        results |= {result.id: result for result in llm.step()}
        llm.check_integrity()
    return results
