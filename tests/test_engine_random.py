"""Random sequences of everything that can be asked of an engine, against a model that computes each answer afresh."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from evalgate.engine.llm import LLM
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.request import Request, Result
from evalgate.engine.session import Session

STEPS = int(os.environ.get("EVALGATE_RANDOM_STEPS", "2000"))
"""Steps in all; a release is checked with ten times as many."""
A_RUN = 80
NEAR = 2e-4
"""Log probabilities from other batch shapes, chunks and decode steps in float32."""
LONGEST = 230
PAGES = 10
"""A parent of three pages, a pin of three, and the four of one more request."""
MOST, RARELY = 10, 4
"""Requests on their way at a time, and how many must be there before one is cancelled; prefixes likewise."""
STOP = frozenset(range(5, 40))
"""So many tokens that about one answer in ten ends early."""


class Asked(NamedTuple):
    """A request on its way, and the whole prompt that it amounts to."""

    request: Request
    prompt: list[int]


class Held(NamedTuple):
    """A session that the test holds, and its tokens."""

    session: Session
    tokens: list[int]


@cache
def stream(seed: int) -> list[int]:
    """Random token ids; prompts that begin with the same stream share a prefix."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 300, (LONGEST,), generator=generator).tolist()


prompts = st.builds(
    lambda shared, cut, tail, length: stream(shared)[:cut] + stream(100 + tail)[:length],
    st.integers(0, 2),
    st.sampled_from([0, 1, 63, 64, 65, 128, 150]),
    st.integers(0, 4),
    st.integers(1, 70),
)


requests = st.builds(
    Request,
    tokens=prompts,
    max_tokens=st.integers(0, 9),
    stop_ids=st.just(STOP),
    priority=st.integers(0, 2),
    reuse=st.sampled_from([True, True, True, False]),
    pin=st.sampled_from([False, False, True]),
    cuts=st.sampled_from([(), (1, 63), (65, 127, 129)]),
)


class Machine(RuleBasedStateMachine):
    """One engine with little memory, and every answer that it still owes."""

    checkpoint: Checkpoint

    def __init__(self) -> None:
        super().__init__()
        self.llm = LLM(
            self.checkpoint,
            max_tokens=LONGEST,
            max_sessions=6,
            max_snapshots=5,
            max_pages=PAGES,
            prefill_chunk=64,
            snapshot_interval=64,
            poison=True,
        )
        self.truth = LLM(self.checkpoint, max_tokens=LONGEST, max_sessions=1, prefix=False, prefill_chunk=1024)
        self.owed: dict[int, Asked] = {}
        self.held: list[Held] = []
        self.pinned: list[Request] = []

    # What can be asked

    @precondition(lambda self: len(self.owed) < MOST)
    @rule(asked=st.lists(requests, min_size=1, max_size=4))
    def submit(self, asked: list[Request]) -> None:
        """New prompts; at most one is pinned at a time."""
        for request in asked:
            pin = request.pin and request.reuse and not self.pinned
            wanted = replace(request, pin=pin)
            if pin:
                self.pinned.append(wanted)
            self.owed[self.llm.submit(wanted)] = Asked(wanted, list(request.tokens))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tail=prompts, max_tokens=st.integers(1, 9))
    def submit_fork(self, data: st.DataObject, tail: list[int], max_tokens: int) -> None:
        """A question that goes on from a session that is held."""
        parent = data.draw(st.sampled_from(self.held))
        tail = tail[: LONGEST - max_tokens - len(parent.tokens)]
        request = Request(tokens=tail, max_tokens=max_tokens, stop_ids=STOP, parent=parent.session)
        self.owed[self.llm.submit(request)] = Asked(request, parent.tokens + tail)

    @precondition(lambda self: not self.held and self.room())
    @rule(tokens=prompts)
    def hold(self, tokens: list[int]) -> None:
        """A session of the caller's own."""
        self.held.append(Held(self.llm.prefill(tokens[:150]), tokens[:150]))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        """Release a held session that no request needs any more."""
        parent = data.draw(st.sampled_from(self.held))
        if all(asked.request.parent is not parent.session for asked in self.owed.values()):
            self.llm.release(parent.session)
            self.held.remove(parent)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        """Let the engine go on."""
        for _ in range(count):
            for result in self.llm.step():
                self.check(result)

    @precondition(lambda self: self.owed)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """Take some request's memory away."""
        self.llm.preempt(data.draw(st.sampled_from(list(self.owed))))

    @precondition(lambda self: len(self.owed) > RARELY)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """End some request where it stands."""
        assert self.llm.cancel(data.draw(st.sampled_from(list(self.owed))))
        self.step(1)

    @precondition(lambda self: len(self.llm.prefixes.stored()) > RARELY)
    @rule()
    def evict(self) -> None:
        """Let a stored prefix go."""
        self.llm.prefixes.evict(1)

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        """Take back the oldest pin, once its request is done."""
        if all(asked.request is not self.pinned[0] for asked in self.owed.values()):
            self.llm.unpin(self.pinned.pop(0))

    # What must hold

    def room(self) -> bool:
        """Whether a slot and pages are free for a session that nobody may preempt."""
        counts = self.llm.counters()
        return counts["slots.free"] > 0 and counts["pages.free"] >= 4

    @invariant()
    def books_balance(self) -> None:
        """Every slot and page is free or held by who says so."""
        self.llm.check_integrity()

    def check(self, result: Result) -> None:
        """Every token is the one that a computation from nothing finds, with its log probability."""
        request, prompt = self.owed.pop(result.id)
        assert result.prompt_tokens == len(prompt)
        assert result.finish in {"stop", "length", "cancelled"}
        assert result.finish != "length" or len(result.tokens) == request.max_tokens
        rows = self.truth.score(prompt + result.tokens)[len(prompt) - 1 :].log_softmax(dim=-1)
        for row, token, logprob in zip(rows, result.tokens, result.logprobs, strict=False):
            assert token not in STOP
            assert abs(row[token] - logprob) < NEAR
            assert row.max() - row[token] < NEAR
        if result.finish == "stop":
            last = rows[len(result.tokens)]
            assert last.max() - last[list(STOP)].max() < NEAR

    def teardown(self) -> None:
        """All that is owed is answered, and all memory comes back."""
        while self.llm.scheduler.busy:
            self.step(1)
        assert not self.owed
        self.llm.release(*(held.session for held in self.held))
        for node in self.llm.prefixes.stored():
            node.pins = 0
        self.llm.prefixes.evict(99)
        self.llm.check_integrity()
        counts = self.llm.counters()
        assert counts["slots.used"] == counts["pages.used"] == counts["snapshots.used"] == 0


@pytest.mark.parametrize("shape", ["hybrid", "mostly-attention"])
def test_random_sequences_answer_as_a_computation_from_nothing(tiny_models: dict[str, Path], shape: str) -> None:
    """Prefill, fork, decode, free, evict, preempt and cancel in any order: no answer and no book goes wrong."""

    class Here(Machine):
        checkpoint = load_checkpoint(tiny_models[shape])

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=max(1, STEPS // A_RUN // 2),
            stateful_step_count=A_RUN,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
