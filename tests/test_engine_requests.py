"""Requests: continuous batches and stored prefixes change cost, never answers."""

from __future__ import annotations

import pytest
import torch
from fixtures_requests import alone, ask, assert_same, drain, engine, words

from evalgate.engine.compression import Compression
from evalgate.engine.loader import Checkpoint
from evalgate.engine.visibility import ContextSpan
from evalgate.errors import DoesNotFitError, UnsupportedError

LENGTHS = (1, 2, 3, 63, 64, 65, 66, 67, 127, 128, 129, 130, 191, 300)
"""0, 1, 2, 3 and 63 past a multiple of 64, and shorter than one."""


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


def test_of_two_that_were_used_about_as_long_ago_the_cheaper_one_goes(hybrid: Checkpoint) -> None:
    """A long prompt stays and a short one goes, whichever came first: it takes more tokens to compute again."""
    long, short = words(580, seed=1), words(70, seed=2)
    for first, second in ((long, short), (short, long)):
        llm = engine(hybrid, max_snapshots=4)
        for prompt in (first, second, *(words(100, seed=seed) for seed in (3, 4, 5))):
            llm.run([ask(prompt)])
        assert llm.run([ask([*long, 5])])[0].cached_tokens == 576
        assert llm.run([ask([*short, 5])])[0].cached_tokens == 0


def test_a_lower_priority_goes_first_however_fresh(hybrid: Checkpoint) -> None:
    """An urgent request lets the fresh prefix of a batch go, for its slot or its pages, not the older one of a chat."""
    chat, batch = words(200, seed=1), words(200, seed=2)
    for limit, last in (({"max_snapshots": 2}, words(100, seed=3)), ({"max_pages": 10}, words(400, seed=3))):
        llm = engine(hybrid, **limit)
        llm.run([ask(chat, priority=1)])
        llm.run([ask(batch)])
        llm.run([ask(last, priority=2)])
        assert llm.run([ask([*chat, 5])])[0].cached_tokens == 192, limit
        assert llm.run([ask([*batch, 5])])[0].cached_tokens == 0, limit


def test_rows_that_one_group_shared_are_not_taken_for_the_next(hybrid: Checkpoint) -> None:
    """Forks decode over their parent's pages together; strangers who come after them have nothing in common."""
    llm = engine(hybrid)
    parent = llm.prefill(words(200))
    forks = llm.fork(parent, [[7], [8]])
    llm.generate(forks, 4)
    llm.release(parent, *forks)
    strangers = [words(150, seed=seed) for seed in (1, 2)]
    sessions = [llm.prefill(tokens) for tokens in strangers]
    for found, tokens in zip(llm.generate(sessions, 4), strangers, strict=True):
        assert_same(found, alone(hybrid, ask(tokens, 4)))


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
    tokens, span = words(300, seed=6), ContextSpan(3, 250)  # the question begins a grid point earlier than it ends
    request = ask(tokens, 10, context=span)
    llm = engine(hybrid, compression=compression)
    parent = llm.prefill(tokens[:192])
    (fork,) = llm.fork(parent, [tokens[192:]], span)
    expected = llm.generate([fork], 10)[0]
    llm.release(parent, fork)
    cold, warm = llm.run([request])[0], llm.run([request])[0]
    number = llm.submit(request)
    for _ in range(5):
        llm.step()
    llm.preempt(number)
    resumed = drain(llm)[number]
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 192)
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


def test_a_prompt_too_short_to_store_is_counted(hybrid: Checkpoint) -> None:
    """Nothing is stored of 64 tokens or fewer, and the counters say why."""
    llm = engine(hybrid)
    llm.run([ask(words(n, seed=n)) for n in (1, 63, 64, 65)])
    assert llm.counters()["store.skipped.short"] == 3
    assert llm.counters()["store.kept"] == 1
