"""Every way to an answer on trained weights and real haystacks: equal tokens, and log probabilities within a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from evalgate.backends.models import find_model
from evalgate.backends.paths import cold, odd_cuts, resumed, warm
from evalgate.engine.llm import GRID, LLM
from evalgate.engine.request import Request, Result
from evalgate.engine.visibility import ContextSpan
from evalgate.runner import RunRequest, prepare

LOGPROB_TOLERANCE = 5e-5
"""float32 on trained weights whose logits reach 20; 2.3e-5 was seen.

A single filler token left out, far before the end, moves them by more than ten times as much.
"""
MODELS = ("builtin:hybrid", "builtin:mostly-attention")
Way = Callable[[LLM, list[Request]], list[Result]]


def forked(llm: LLM, requests: list[Request]) -> list[Result]:
    """As arm ``default`` does: one prefill up to the grid, and a fork for each question."""
    shared = min(request.context.end for request in requests if request.context) // GRID * GRID
    parent = llm.prefill(requests[0].tokens[:shared])
    try:
        return llm.run([replace(r, tokens=r.tokens[shared:], parent=parent) for r in requests])
    finally:
        llm.release(parent)


def chunked(llm: LLM, requests: list[Request]) -> list[Result]:
    """Passes that end in odd places."""
    return llm.run([replace(r, cuts=odd_cuts(r.context.end if r.context else 0, len(r.tokens))) for r in requests])


WAYS: dict[str, Way] = {"forked": forked, "chunked": chunked, "warm": warm, "resumed": resumed}


@cache
def asked(model: str) -> list[Request]:
    """Questions on one haystack of 1,024 tokens, and the haystack itself cut anywhere, each with twelve tokens to go.

    A model is sure of its answers, whose log probabilities are nearly 0; how filler goes on it can only guess.
    """
    builder = prepare(RunRequest(suite="smoke", model=model, profile="full", seeds=1, seed_set="arms")).source
    haystack = builder.build(0, builder.streams[0])
    prompts = []
    for probe in haystack.probes:
        end = haystack.ends[probe.cell.length]
        prompts.append(([*haystack.tokens[:end], *probe.tail], end))
    prompts += [(haystack.tokens[:end], end) for end in (577, 640, 703, 800)]
    return [Request(tokens=t, max_tokens=12, reuse=False, context=ContextSpan(0, end)) for t, end in prompts]


def engine(model: str) -> LLM:
    """Room for the requests, everything else as a run has it."""
    return LLM.open(find_model(model), max_tokens=1200)


@cache
def from_nothing(model: str) -> list[Result]:
    """What every other way has to agree with."""
    return cold(engine(model), asked(model))


def logprobs(results: list[Result]) -> torch.Tensor:
    """``[requests, tokens]``"""
    return torch.tensor([result.logprobs for result in results])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_every_way_gives_the_answer_from_nothing(model: str, way: str) -> None:
    """Tokens are equal; log probabilities differ by rounding only."""
    found, expected = WAYS[way](engine(model), asked(model)), from_nothing(model)
    assert [result.tokens for result in found] == [result.tokens for result in expected]
    assert logprobs(found).shape == (10, 12)
    torch.testing.assert_close(logprobs(found), logprobs(expected), atol=LOGPROB_TOLERANCE, rtol=0)


def test_one_token_left_out_is_seen() -> None:
    """The bound is far below what the smallest fault does."""
    model = MODELS[0]
    found = cold(engine(model), [replace(r, tokens=[*r.tokens[:400], *r.tokens[401:]]) for r in asked(model)])
    moved = (logprobs(found) - logprobs(from_nothing(model)))[:, 0].abs().max()
    assert moved > 10 * LOGPROB_TOLERANCE
