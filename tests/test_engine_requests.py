"""Requests: continuous batches, stored prefixes, preemption and cancelling change cost, never answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evalgate.engine.compression import Compression
from evalgate.engine.llm import LLM
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.request import Request, Result
from evalgate.engine.visibility import ContextSpan
from evalgate.errors import DoesNotFitError, UnsupportedError

NEAR = 1e-4
"""Log probabilities from two batch shapes in float32."""
LENGTHS = (1, 2, 3, 63, 64, 65, 66, 67, 127, 128, 129, 130, 191, 300)
"""0, 1, 2, 3 and 63 past a multiple of 64, and shorter than one."""


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


def test_requests_together_answer_as_alone(checkpoint: Checkpoint) -> None:
    """More requests than slots, of all lengths near the grid, first, middle and last rows: each as if it were alone."""
    requests = [ask(words(n, seed=n), 3 + n % 5) for n in LENGTHS]
    llm = engine(checkpoint)
    numbers = [llm.submit(request) for request in requests]
    results = drain(llm)
    for number, request in zip(numbers, requests, strict=True):
        assert_same(results[number], alone(checkpoint, request))
        assert results[number].prompt_tokens == len(request.tokens)
    assert llm.counters()["slots.used"] == 0


@pytest.mark.parametrize("length", [65, 128, 129, 200, 256])
def test_second_and_third_request_start_from_the_stored_prefix(checkpoint: Checkpoint, length: int) -> None:
    """The same prompt again, and then one that ends otherwise, reuse the stored part and answer as from nothing."""
    llm = engine(checkpoint, snapshot_interval=64)
    first = ask(words(length, seed=1))
    other = ask([*words(length, seed=1)[: length - 1], 7, 8, 9])
    results = llm.run([first]) + llm.run([first]) + llm.run([first]) + llm.run([other])
    for result in results[:3]:
        assert_same(result, alone(checkpoint, first))
    assert_same(results[3], alone(checkpoint, other))
    assert results[0].cached_tokens == 0
    assert {result.cached_tokens for result in results[1:]} == {(length - 1) // 64 * 64}
    llm.check_integrity()
    counts = llm.counters()
    assert counts["prefix.queries"] == 4
    assert counts["prefix.tokens_reused"] == sum(result.cached_tokens for result in results)


def test_a_hit_changes_nothing_that_is_stored(hybrid: Checkpoint) -> None:
    """Answering from a stored prefix, however often, leaves its state and latents bit for bit as they were."""
    llm = engine(hybrid)
    llm.run([ask(words(200))])
    (node,) = llm.prefixes.stored()
    assert node.prefix is not None
    rows = llm.pages.locate(list(node.prefix.pages), 0, node.tokens)
    probe = llm.memory.restore(node.prefix)
    before = [part.clone() for part in (*llm.states.parts(probe.slot), *(c[:, rows] for c in llm.pages.columns))]
    llm.release(probe)
    for seed in range(3):
        llm.run([ask([*words(200), *words(80, seed=seed + 1)], 20)])
    probe = llm.memory.restore(node.prefix)
    after = [*llm.states.parts(probe.slot), *(c[:, rows] for c in llm.pages.columns)]
    for then, now in zip(before, after, strict=True):
        assert torch.equal(then, now)


def test_restored_state_is_bitwise_the_one_that_was_computed(hybrid: Checkpoint) -> None:
    """State and convolution tail at a grid point are the same bits from one piece, from chunks and from a snapshot."""
    whole, cut = engine(hybrid, prefill_chunk=512), engine(hybrid, prefill_chunk=64)
    expected = whole.states.parts(whole.prefill(words(320)).slot)
    chunked = cut.states.parts(cut.prefill(words(320)).slot)
    cut.run([ask(words(330))])
    prefix = cut.prefixes.stored()[0].prefix
    assert prefix is not None
    restored = cut.states.parts(cut.memory.restore(prefix).slot)
    core = slice(0, 1)  # the first layer's inputs are the embeddings: identical whatever attention rounds later
    for one, two, three in zip(expected, chunked, restored, strict=True):
        assert torch.equal(one[core], two[core])
        assert torch.equal(two, three)


def test_branch_point_is_stored_when_a_second_prompt_leaves_the_path(hybrid: Checkpoint) -> None:
    """Where two prompts part, the second keeps a snapshot, so that a third can start there; the loss before is told."""
    llm = engine(hybrid, snapshot_interval=64)
    shared = words(200)
    first, second, third = ([*shared, *words(150, seed=seed)] for seed in (1, 2, 3))
    llm.run([ask(first)])
    assert [node.tokens for node in llm.prefixes.stored()] == [320]
    llm.run([ask(second)])
    assert sorted(node.tokens for node in llm.prefixes.stored()) == [192, 320, 320]
    counts = llm.counters()
    assert counts["prefix.kv_tokens_matched"] == counts["prefix.tokens_lost_to_clamping"] == 192
    assert counts["prefix.hits"] == counts["prefix.state_tokens_matched"] == 0
    result = llm.run([ask(third)])[0]
    assert result.cached_tokens == 192
    assert_same(result, alone(hybrid, ask(third)))
    assert llm.counters()["prefix.tokens_lost_to_clamping"] == 192
    llm.check_integrity()


def test_snapshots_of_one_path_keep_their_distance(hybrid: Checkpoint) -> None:
    """A snapshot nearer than the interval to the one before it is skipped and counted, unless it is pinned."""
    llm = engine(hybrid, snapshot_interval=256)
    llm.run([ask(words(100)), ask(words(300))])
    assert [node.tokens for node in llm.prefixes.stored()] == [64]
    assert llm.counters()["store.skipped.near"] == 1
    llm.run([ask(words(300), pin=True)])
    llm.run([ask(words(400))])
    assert sorted(node.tokens for node in llm.prefixes.stored()) == [64, 256]
    llm.run([ask(words(590))])
    assert sorted(node.tokens for node in llm.prefixes.stored()) == [64, 256, 576]


def test_batch_sweep_does_not_evict_a_protected_prefix(hybrid: Checkpoint) -> None:
    """Twenty prompts of priority 0 leave the prefix of priority 1, and the pinned one, where they are."""
    llm = engine(hybrid, max_snapshots=3)
    chat, pinned = words(200, seed=1), words(150, seed=2)
    llm.run([ask(chat, priority=1), ask(pinned, pin=True)])
    llm.run([ask(words(100 + seed, seed=seed)) for seed in range(10, 30)])
    assert llm.counters()["evicted.states.slots"] == 19
    assert llm.run([ask([*chat, 5])])[0].cached_tokens == 192
    assert llm.run([ask([*pinned, 5])])[0].cached_tokens == 128
    llm.check_integrity()
    llm.run([ask(words(100, seed=99), priority=2, pin=True), ask(words(120, seed=98), priority=2, pin=True)])
    llm.run([ask(words(90, seed=97))])
    assert llm.counters()["store.skipped.protected"] == 1
    llm.unpin(ask(pinned))
    llm.run([ask(words(90, seed=96))])
    assert llm.run([ask([*words(90, seed=96), 5])])[0].cached_tokens == 64


def test_oldest_goes_first_and_only_what_was_consumed_is_fresh(hybrid: Checkpoint) -> None:
    """Of equal priority the prefix that was longest not consumed goes; passing it on the way does not count."""
    llm = engine(hybrid, max_snapshots=3, snapshot_interval=64)
    a, b = words(100, seed=1), words(100, seed=2)
    llm.run([ask(a)])
    llm.run([ask([*a, *words(100, seed=3)])])
    llm.run([ask(b)])
    llm.run([ask([*a, *words(100, seed=3), 9])])  # consumes the long one, passes the short one
    llm.run([ask(words(100, seed=4))])
    assert sorted((node.tokens, node.parent is llm.prefixes.index.root) for node in llm.prefixes.stored()) == [
        (64, True),
        (64, True),
        (192, False),
    ]
    assert llm.run([ask([*b, 5])])[0].cached_tokens == 64
    assert llm.run([ask([*words(100, seed=3)])])[0].cached_tokens == 0


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


@pytest.mark.parametrize("cuts", [(1,), (63, 65), (64, 127, 128, 129), (191, 193, 250)])
def test_cuts_on_and_off_the_grid_change_nothing(checkpoint: Checkpoint, cuts: tuple[int, ...]) -> None:
    """Passes that end just before, at and after grid points give the same answer."""
    request = ask(words(260, seed=5), cuts=cuts)
    assert_same(engine(checkpoint).run([request])[0], alone(checkpoint, request))


@pytest.mark.parametrize(
    "compression",
    [
        Compression(state_dtype="int8"),
        Compression(state_dtype="int4", codec_every=64),
        Compression(state_dtype="bf16", codec_every=128),
        Compression(state_rank=4),
        Compression(kv_dtype="int8"),
        Compression(kv_keep=0.5),
        Compression(kv_window=100),
    ],
    ids=str,
)
def test_every_path_compresses_alike(hybrid: Checkpoint, compression: Compression) -> None:
    """Fork, from nothing, from a stored prefix and after a preemption: a profile acts at the same places on each."""
    tokens, span = words(300, seed=6), ContextSpan(3, 280)
    request = ask(tokens, 10, context=span)
    llm = engine(hybrid, compression=compression)
    parent = llm.prefill(tokens[:256])
    (fork,) = llm.fork(parent, [tokens[256:]], span)
    expected = llm.generate([fork], 10)[0]
    llm.release(parent, fork)
    cold, warm = llm.run([request])[0], llm.run([request])[0]
    number = llm.submit(request)
    for _ in range(5):
        llm.step()
    llm.preempt(number)
    resumed = drain(llm)[number]
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 256)
    for found in (cold, warm, resumed):
        assert_same(found, expected)
    plain = engine(hybrid).run([request])[0]
    assert plain.logprobs != expected.logprobs


def test_pages_of_another_size_store_prefixes_on_both_grids(hybrid: Checkpoint) -> None:
    """Pages of 96 tokens: prefixes are kept at multiples of 192 only, and answers stay."""
    llm = engine(hybrid, page=96)
    request = ask(words(300, seed=7))
    first, second = llm.run([request])[0], llm.run([request])[0]
    assert (first.cached_tokens, second.cached_tokens) == (0, 192)
    assert_same(first, alone(hybrid, request))
    assert_same(second, alone(hybrid, request))


def test_row_of_nan_ends_as_an_error_and_is_counted(hybrid: Checkpoint) -> None:
    """A state that went bad ends its own request; what follows in its slot is sound."""
    llm = engine(hybrid)
    parent = llm.prefill(words(128))
    llm.states.recurrent[:, parent.slot] = torch.nan
    bad, good = llm.run([ask(words(5), parent=parent), ask(words(70, seed=8))])
    assert (bad.finish, bad.tokens) == ("error", [])
    assert_same(good, alone(hybrid, ask(words(70, seed=8))))
    assert llm.counters()["nonfinite_logits"] == 1


def test_what_cannot_be_done_is_refused_before_it_starts(hybrid: Checkpoint) -> None:
    """No tokens, ids outside the vocabulary, too long, too few pages: a clear message, and nothing is taken."""
    llm = engine(hybrid)
    for request, error, said in (
        (ask([]), UnsupportedError, "at least one token"),
        (ask([1, 320]), UnsupportedError, "token id 320 was found; expected 0 to 319"),
        (ask([-1]), UnsupportedError, "token id -1"),
        (ask(words(595)), DoesNotFitError, "601 tokens asked for, at most 600 fit"),
    ):
        with pytest.raises(error, match=said):
            llm.submit(request)
    assert not llm.scheduler.busy
    with pytest.raises(DoesNotFitError, match="needs 10 pages of 64 tokens, the engine was given 9"):
        engine(hybrid, max_pages=9)
    held = engine(hybrid, max_pages=10)
    parent = held.prefill(words(300))
    with pytest.raises(DoesNotFitError, match="held by open sessions and pinned prefixes"):
        held.run([ask(words(590))])
    held.check_integrity()
    held.release(parent)
    assert held.run([ask(words(590))])[0].finish == "length"


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


def test_a_prompt_too_short_to_store_is_counted(hybrid: Checkpoint) -> None:
    """Nothing is stored of 64 tokens or fewer, and the counters say why."""
    llm = engine(hybrid)
    llm.run([ask(words(n, seed=n)) for n in (1, 63, 64, 65)])
    assert llm.counters()["store.skipped.short"] == 3
    assert llm.counters()["store.kept"] == 1
