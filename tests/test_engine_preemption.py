"""Too little memory, preemption and cancelling change when an answer comes, never what it is."""

from __future__ import annotations

import pytest
from fixtures_requests import alone, ask, assert_same, drain, engine, words

from evalgate.engine.loader import Checkpoint
from evalgate.errors import DoesNotFitError


def test_pages_of_prefixes_are_let_go_before_a_request_waits(hybrid: Checkpoint) -> None:
    """A pool that stored prefixes fill still serves a request of full length, and pages add up after it."""
    llm = engine(hybrid, max_pages=10, max_snapshots=8)
    llm.run([ask(words(150, seed=seed)) for seed in range(4)])
    assert llm.counters()["snapshots.used"] >= 3
    request = ask(words(590, seed=9))
    assert_same(llm.run([request])[0], alone(hybrid, request))
    assert llm.counters()["evicted.pages.pages"] > 0
    llm.check_integrity()


def test_more_demand_than_pages_preempts_and_answers_the_same(checkpoint: Checkpoint) -> None:
    """Four requests that together want 1.1 times the pages: some are preempted, all answer as alone."""
    requests = [ask(words(130 + seed, seed=seed), 60) for seed in range(4)]
    llm = engine(checkpoint, max_tokens=250, max_pages=11)
    numbers = [llm.submit(request) for request in requests]
    results = drain(llm)
    counts = llm.counters()
    assert counts["preemptions.memory"] > 0
    assert counts["resumed"] == counts["preemptions.memory"]
    for number, request in zip(numbers, requests, strict=True):
        assert_same(results[number], alone(checkpoint, request, max_tokens=250))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6, 9])
@pytest.mark.parametrize("prefix", [False, True])
def test_preempted_anywhere_it_goes_on_as_if_nothing_had_been(checkpoint: Checkpoint, steps: int, prefix: bool) -> None:
    """Preempted in mid-prefill or in mid-answer, twice, with and without a stored prefix to come back to."""
    request = ask(words(260, seed=3), 12)
    llm = engine(checkpoint, prefix=prefix)
    number = llm.submit(request)
    for _ in range(2):
        for _ in range(steps):
            llm.step()
        assert llm.preempt(number)
        llm.check_integrity()
        assert llm.counters()["slots.used"] == 0
    other = llm.submit(ask(words(100, seed=4)))  # takes the slot that was given back
    results = drain(llm)
    assert results[number].preemptions == 2
    assert_same(results[number], alone(checkpoint, request))
    assert_same(results[other], alone(checkpoint, ask(words(100, seed=4))))
    assert not llm.preempt(number)


def test_higher_priority_takes_the_slot_of_a_lower_one(hybrid: Checkpoint) -> None:
    """With one slot, an urgent request preempts the running one, which goes on afterwards."""
    llm = engine(hybrid, max_sessions=1)
    slow = llm.submit(ask(words(200, seed=1), 10))
    llm.step()
    urgent = llm.submit(ask(words(70, seed=2), priority=5))
    order = list(drain(llm))
    assert order == [urgent, slow]
    assert llm.counters()["preemptions.priority"] == 1


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_cancelled_request_gives_everything_back(hybrid: Checkpoint, steps: int) -> None:
    """Cancelled while waiting, in mid-prefill or in mid-answer: its memory is free, its neighbour answers as alone."""
    llm = engine(hybrid)
    doomed, kept = llm.submit(ask(words(300, seed=1), 20)), llm.submit(ask(words(100, seed=2), 20))
    for _ in range(steps):
        llm.step()
    assert llm.cancel(doomed)
    llm.check_integrity()
    results = drain(llm)
    assert results[doomed].finish == "cancelled"
    assert_same(results[kept], alone(hybrid, ask(words(100, seed=2), 20)))
    assert not llm.cancel(doomed)
    assert llm.counters()["slots.used"] == 0


def test_forked_requests_with_different_continuations(checkpoint: Checkpoint) -> None:
    """Requests that fork from a living parent, preempted in between, answer as the whole prompts do alone."""
    llm = engine(checkpoint)
    parent = llm.prefill(words(200))
    tails = [words(n, seed=n) for n in (1, 30, 64, 90)]
    numbers = [llm.submit(ask(tail, parent=parent)) for tail in tails]
    for _ in range(3):
        llm.step()
    llm.preempt(numbers[1])
    results = drain(llm)
    for number, tail in zip(numbers, tails, strict=True):
        assert_same(results[number], alone(checkpoint, ask(words(200) + tail)))
        assert results[number].cached_tokens == 200
        assert results[number].prompt_tokens == 200 + len(tail)
    llm.release(parent)
    llm.check_integrity()


def test_fork_waits_for_the_page_that_it_copies(hybrid: Checkpoint) -> None:
    """With every page taken, a fork off a page border makes later requests give way, and waits for earlier ones."""
    llm = engine(hybrid, max_tokens=320, max_pages=7, prefix=False)
    parent = llm.prefill(words(100))
    running = llm.submit(ask(words(315, seed=1), 5))
    llm.step()
    llm.step()
    llm.step()
    assert llm.counters()["pages.free"] == 0
    urgent = llm.submit(ask(words(5, seed=2), parent=parent, priority=1))
    later = llm.submit(ask(words(5, seed=3), parent=parent))
    results = drain(llm)
    assert_same(results[urgent], alone(hybrid, ask(words(100) + words(5, seed=2))))
    assert_same(results[later], alone(hybrid, ask(words(100) + words(5, seed=3))))
    assert_same(results[running], alone(hybrid, ask(words(315, seed=1), 5)))
    assert results[running].preemptions > 0


def test_fork_without_a_page_to_copy_to_is_refused_once(hybrid: Checkpoint) -> None:
    """When open sessions hold every page, the request is told so and dropped; the engine goes on."""
    llm = engine(hybrid, max_tokens=320, max_pages=7, prefix=False)
    parent, other = llm.prefill(words(100)), llm.prefill(words(320, seed=1))
    number = llm.submit(ask(words(5, seed=2), parent=parent))
    with pytest.raises(DoesNotFitError, match="pages of 64 tokens wanted"):
        llm.step()
    assert [(result.id, result.finish) for result in llm.step()] == [(number, "cancelled")]
    llm.release(other)
    assert llm.run([ask(words(5, seed=2), parent=parent)])[0].finish == "length"
    llm.check_integrity()


def test_an_engine_goes_on_after_an_answer_was_broken_off(hybrid: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken off in a decode step, nothing is left on its way: sessions are released and others answer as alone."""
    llm = engine(hybrid)
    session = llm.prefill(words(100))
    whole, calls = llm.runner.decode, iter([False, False, True])

    def broken(*given: object) -> None:
        if next(calls, False):
            raise KeyboardInterrupt
        whole(*given)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(llm.runner, "decode", broken)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([session], 8)
    llm.release(session)
    assert_same(llm.run([ask(words(70, seed=1))])[0], alone(hybrid, ask(words(70, seed=1))))
    assert not llm.scheduler.busy
    llm.check_integrity()
