"""The engine's logits against a float64 forward written from the kernels' references, with transformers as the bar."""

from __future__ import annotations

import itertools
import operator
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from reference_model import FLOOR, error, forward, rounded_weights, rounding
from torch import Tensor

from evalgate.engine.compression import Compression
from evalgate.engine.llm import LLM
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.visibility import ContextSpan

SHORT, DRAWS = 129, 8
"""Prompts of so few tokens are held against transformers on several draws: one draw's worst position is chance."""
TINY, TINY_DRAWS = 4, 64
"""Of so few tokens on many more, and each by its own measure: see :func:`reference_model.rounding`.

A first key that is nearly orthogonal to its query leaves the gated norm almost nothing to scale up, so the error of one
prompt is a hundred times another's, and which of two float32 forwards meets the worst is chance."""
LENGTHS = (1, 2, 3, 4, 63, 64, 65, 127, 128, 129, 1000, 4097)


class Case(NamedTuple):
    """One model with the truth about one prompt; the truth about a shorter prompt is its first rows."""

    checkpoint: Checkpoint
    tokens: list[int]
    truth: Tensor
    """float64 ``[4097, vocab]``"""
    oracle: Any
    """transformers' model, float32"""
    bars: dict[int, float]
    """Length -> largest error allowed, in the units of its draw: twice transformers' own, or the floor."""
    typical: dict[int, float]
    """Length up to TINY -> largest median error allowed: one and a half times transformers' own, or the floor."""
    short: list[tuple[list[int], Tensor]]
    """Other prompts of :data:`SHORT` tokens, with their truth."""
    tiny: list[tuple[list[int], Tensor]]
    """Other prompts of :data:`TINY` tokens."""
    units: dict[int, list[float]]
    """Length -> for each draw what its errors are counted in: of a few tokens what float32 costs it, else 1."""

    def draws(self, length: int) -> list[tuple[list[int], Tensor]]:
        """Prompts of that length and their truth: the one prompt, and where it is short the others too."""
        others = (self.short if length <= SHORT else []) + (self.tiny if length <= TINY else [])
        return [(t[:length], truth[:length]) for t, truth in [(self.tokens, self.truth), *others]]

    def engine(self, chunk: int = 1024) -> LLM:
        """An engine with poisoned pools."""
        return LLM(self.checkpoint, prefill_chunk=chunk, max_tokens=5000, max_sessions=10, poison=True)


@pytest.fixture(scope="module")
def case(trained_or_random: Path) -> Case:
    """The truth and transformers' own error, computed once a model."""
    from transformers import AutoModelForCausalLM

    checkpoint = load_checkpoint(trained_or_random)
    generator = torch.Generator().manual_seed(11)
    tokens = torch.randint(5, checkpoint.config.vocab, (LENGTHS[-1],), generator=generator).tolist()
    truth = forward(checkpoint.config, checkpoint.tensors, tokens)
    oracle = AutoModelForCausalLM.from_pretrained(trained_or_random, dtype=torch.float32).eval()
    short, tiny = [
        [
            (draw, forward(checkpoint.config, checkpoint.tensors, draw))
            for draw in torch.randint(5, checkpoint.config.vocab, size, generator=generator).tolist()
        ]
        for size in ((DRAWS, SHORT), (TINY_DRAWS, TINY))
    ]
    case = Case(checkpoint, tokens, truth, oracle, {}, {}, short, tiny, {})
    rounded = rounded_weights(checkpoint.tensors, generator)
    with torch.inference_mode():
        for length in LENGTHS:
            draws = case.draws(length)
            own = [error(oracle(torch.tensor([t]), use_cache=False).logits[0], right) for t, right in draws]
            case.units[length] = [
                rounding(checkpoint.config, rounded, t, right) if length <= TINY else 1.0 for t, right in draws
            ]
            case.bars[length] = max(2 * max(map(operator.truediv, own, case.units[length])), FLOOR)
            case.typical[length] = max(1.5 * statistics.median(own), FLOOR)
    return case


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_of_a_prompt_in_one_piece(case: Case, length: int) -> None:
    """Every position of every length, at most twice transformers' own error; of a few tokens the median as well."""
    llm = case.engine(chunk=4160)
    found = [error(llm.score(tokens), truth) for tokens, truth in case.draws(length)]
    for value, unit in zip(found, case.units[length], strict=True):
        assert value <= max(case.bars[length] * unit, FLOOR)
    assert length > TINY or statistics.median(found) <= case.typical[length]


@pytest.mark.parametrize("chunk", [64, 128, 1024])
@pytest.mark.parametrize("length", [65, 129, 1000, 4097])
def test_logits_of_a_prompt_in_chunks(case: Case, length: int, chunk: int) -> None:
    """Cutting the prompt on the grid costs no precision."""
    if length == 4097 and chunk < 1024:
        length = 1100  # the same paths in a quarter of the time
    found = case.engine(chunk).score(case.tokens[:length])
    assert error(found, case.truth[:length]) <= case.bars.get(length, case.bars[1000])


@pytest.mark.parametrize("at", [0, 1, 63, 64, 127, 128, 640, 999])
def test_logits_after_a_fork(case: Case, at: int) -> None:
    """Forks of unequal tails, from the grid and off it, are as exact as the prompt in one piece."""
    llm = case.engine()
    parent = llm.prefill(case.tokens[:at])
    ends = [at + 1, at + 37, 1000]
    forks = llm.fork(parent, [case.tokens[at:end] for end in ends])
    found = llm.logits(forks)
    assert error(found, case.truth[[end - 1 for end in ends]]) <= case.bars[1000]


def test_logits_token_by_token(case: Case) -> None:
    """Decode steps, sessions of unlike prompts and unequal lengths in one batch, from the first token on."""
    llm = case.engine()
    draws = case.draws(SHORT)
    starts = [1, 2, 59, *range(3, 60, 9)][: len(draws)]
    sessions = [llm.prefill(tokens[:start]) for (tokens, _), start in zip(draws, starts, strict=True)]
    for _ in range(70):
        rows = list(zip(draws, sessions, strict=True))
        with torch.inference_mode():
            llm.runner.decode(sessions, [tokens[session.tokens] for (tokens, _), session in rows], 0)
        truth = torch.stack([right[session.tokens - 1] for (_, right), session in rows])
        assert error(llm.logits(sessions), truth) <= case.bars[SHORT], f"at {[s.tokens for s in sessions]} tokens"


def test_logits_of_one_token_stretches(case: Case) -> None:
    """Stretches shorter than the convolution and off the grid, one after another."""
    llm = case.engine()
    for tokens, truth in case.draws(SHORT)[:3]:
        session = llm.start()
        steps = itertools.cycle((1, 2, 3, 1, 5))
        while session.tokens < SHORT - 5:
            llm.extend(session, tokens[session.tokens : session.tokens + next(steps)])
            found = llm.logits([session])
            assert error(found, truth[[session.tokens - 1]]) <= case.bars[SHORT], f"at {session.tokens} tokens"


@pytest.mark.parametrize("length", [1, 63, 64, 65, 700])
def test_greedy_answers_are_those_of_transformers(case: Case, length: int) -> None:
    """Token for token, in a batch with other sessions."""
    llm = case.engine()
    prompts = [case.tokens[:length], case.tokens[5 : 5 + length], case.tokens[9 : 9 + length + 3]]
    found = llm.generate([llm.prefill(prompt) for prompt in prompts], 20)
    for prompt, generation in zip(prompts, found, strict=True):
        expected = case.oracle.generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert generation.tokens == expected[0, len(prompt) :].tolist()
        assert generation.finish == "length"


def test_logprobs_are_those_of_the_truth(case: Case) -> None:
    """Log probabilities of the prompt's own tokens: the rule of the logits, on the largest difference."""
    targets = torch.tensor(case.tokens[1:700])[:, None]

    def chosen(logits: Tensor) -> Tensor:
        return logits[:699].log_softmax(dim=-1).gather(1, targets)[:, 0].double()

    expected = chosen(case.truth)
    with torch.inference_mode():
        own = chosen(case.oracle(torch.tensor([case.tokens[:700]]), use_cache=False).logits[0])
    bar = max(2 * float((own - expected).abs().max()), FLOOR * float(expected.abs().max()))
    found = case.engine().logprobs(case.tokens[:700])
    assert float((found.double() - expected).abs().max()) <= bar


def test_bfloat16_stays_near_the_truth(case: Case) -> None:
    """The engine also computes in bfloat16, with states and gates in float32."""
    llm = LLM(case.checkpoint, dtype="bf16", max_tokens=1000, max_sessions=1)
    assert llm.states.recurrent.dtype == torch.float32
    found, truth = llm.score(case.tokens[:300]).double(), case.truth[:300]
    # The middle position: where rounding swaps two experts, that position is off by a whole expert.
    assert ((found - truth).norm(dim=-1) / truth.norm(dim=-1)).median() < 0.1


@pytest.mark.parametrize("chunk", [64, 1024])
@pytest.mark.parametrize(
    "compression", [Compression(kv_keep=0.5), Compression(kv_keep=0.9), Compression(kv_window=128)], ids=str
)
def test_hidden_tokens_are_hidden_and_nothing_else_is(case: Case, compression: Compression, chunk: int) -> None:
    """A hole for what follows the context, or a window that stops at its end: as attention with that mask.

    Through prefill, fork, cut and decode steps, in which the fork's cache no longer holds what is hidden.
    """
    start, end, asked = 5, 700, 760
    q, k = torch.arange(asked + 6)[:, None], torch.arange(asked + 6)[None, :]
    kept = round((end - start) * compression.kv_keep)
    hole = range(start + (kept + 1) // 2, end - kept // 2)
    visible = (k <= q) & ((q < end) | (k < hole.start) | (k >= hole.stop))
    if compression.kv_window is not None:
        visible &= k >= (q + 1).clamp(max=end) - compression.kv_window
    truth = forward(case.checkpoint.config, case.checkpoint.tensors, case.tokens[: asked + 6], visible)
    llm = LLM(
        case.checkpoint, compression=compression, prefill_chunk=chunk, max_tokens=1000, max_sessions=4, poison=True
    )
    parent = llm.prefill(case.tokens[:640])
    forks = llm.fork(parent, [case.tokens[640:asked], case.tokens[640:735]], ContextSpan(start, end))
    assert error(llm.logits(forks), truth[[asked - 1, 734]]) <= case.bars[1000]
    for _ in range(6):
        with torch.inference_mode():
            llm.runner.decode(forks, [case.tokens[fork.tokens] for fork in forks], llm.runner.common_rows(forks))
        assert error(llm.logits(forks), truth[[fork.tokens - 1 for fork in forks]]) <= case.bars[1000]
