"""Stored prefixes piece by piece: the tree, the snapshots, and books that notice every kind of error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evalgate.engine.compression import Compression, StateCodec, StateDtype
from evalgate.engine.config import read_config
from evalgate.engine.counters import Counters
from evalgate.engine.llm import LLM
from evalgate.engine.loader import load_checkpoint
from evalgate.engine.prefix_index import Prefix, PrefixIndex
from evalgate.engine.request import Request
from evalgate.engine.session import Session
from evalgate.engine.snapshot_pool import SnapshotPool
from evalgate.engine.state_pool import StatePool, Tag, state_shape


def prefix(number: int, tokens: int) -> Prefix:
    """A stored prefix without memory."""
    return Prefix(id=number, tokens=tokens, slot=number, pages=(), floor=0)


def test_tree_finds_the_deepest_prefix_and_how_far_the_path_goes() -> None:
    """A prompt that leaves a path keeps what it shares with it, whole blocks only, up to the limit."""
    index = PrefixIndex(4)
    long = list(range(20))
    for number, count in ((1, 4), (2, 16)):
        index.place(long, count).prefix = prefix(number, count)
    for tokens, limit, path, found in (
        (long, 20, 16, 16),
        (long, 15, 12, 4),
        (long[:13] + [99] * 5, 18, 12, 4),
        (long[:3], 3, 0, None),
        ([*long[:3], 99], 4, 0, None),
        (long, 3, 0, None),
    ):
        match = index.match(tokens, limit)
        assert match.tokens == path
        assert (match.node and match.node.tokens) == found


def test_tree_tells_prompts_apart_that_differ_in_any_token() -> None:
    """Blocks are compared, not their hashes: one other token anywhere, or the blocks in another order, is a miss."""
    index = PrefixIndex(4)
    index.place([1, 2, 3, 4, 5, 6, 7, 8], 8).prefix = prefix(1, 8)
    for at in range(8):
        other = [1, 2, 3, 4, 5, 6, 7, 8]
        other[at] = -1
        assert index.match(other, 8).node is None
    assert index.match([5, 6, 7, 8, 1, 2, 3, 4], 8).tokens == 0
    # 2**64 apart: equal where keys are cut to 32 bits or less.
    assert index.match([1 + 2**32, 2, 3, 4, 5, 6, 7, 8], 8).tokens == 0


def test_pruning_stops_where_something_is_held() -> None:
    """Dead ends go, down to the next stored prefix or fork."""
    index = PrefixIndex(2)
    deep = index.place([1, 2, 3, 4, 5, 6], 6)
    middle = index.place([1, 2, 3, 4], 4)
    middle.prefix = prefix(1, 4)
    side = index.place([1, 2, 9, 9], 4)
    index.prune(deep)
    assert [node.tokens for node in index.nodes() if node.prefix] == [4]
    assert deep.block not in middle.children
    middle.prefix = None
    index.prune(middle)
    assert [node.tokens for node in index.nodes()] == [2, 4]
    index.prune(side)
    assert not list(index.nodes())


@pytest.mark.parametrize(("dtype", "most"), [("fp32", 0.0), ("bf16", 0.005), ("int8", 0.02), ("int4", 0.3)], ids=str)
@pytest.mark.parametrize("feedback", [False, True])
def test_snapshot_holds_the_whole_slot(
    tiny_models: dict[str, Path], dtype: StateDtype, most: float, feedback: bool
) -> None:
    """State, convolution tail and rounding errors come back, the state as near as its form allows, the rest exactly."""
    config = read_config(tiny_models["hybrid"])
    compression = Compression(snapshot_dtype=dtype)
    specs = Compression(state_dtype="int8", error_feedback=feedback)
    live = StatePool(
        config,
        3,
        state_dtype=torch.float32,
        conv_dtype=torch.float32,
        error_specs=StateCodec(specs).error_specs(state_shape(config)),
        poison=True,
    )
    snapshots = SnapshotPool(live, 2, compression.snapshot_form, poison=True)
    source, target = live.allocate(1), live.allocate(2)
    for part in live.parts(source):
        part.copy_(torch.randint(-90, 90, part.shape) if not part.is_floating_point() else torch.randn(part.shape))
    live.advance(source, 64)
    slot = snapshots.take(source, 7, 64)
    kept = [part.clone() for part in live.parts(source)]
    live.release(source, 1)
    snapshots.restore(slot, 7, 64, target)
    live.check(target, 2, 64)
    state, *others = live.parts(target)
    assert (state - kept[0]).norm() <= most * kept[0].norm()
    assert (most == 0.0) == torch.equal(state, kept[0])
    assert len(others) == (3 if feedback else 1)
    for now, then in zip(others, kept[1:], strict=True):
        assert torch.equal(now, then)


def test_snapshot_is_checked_before_it_is_used(tiny_models: dict[str, Path]) -> None:
    """Another owner, another token count, and a slot that was freed (and poisoned) are errors; slot 0 is scratch."""
    config = read_config(tiny_models["hybrid"])
    live = StatePool(config, 2, state_dtype=torch.float32, conv_dtype=torch.float32, poison=True)
    snapshots = SnapshotPool(live, 2, Compression().snapshot_form, poison=True)
    source, target = live.allocate(1), live.allocate(2)
    slots = [snapshots.take(source, owner, 64) for owner in (7, 8)]
    assert sorted(slots) == [1, 2]
    for owner, tokens in ((8, 64), (7, 128)):
        with pytest.raises(AssertionError, match=f"prefix {owner} expected {tokens} tokens"):
            snapshots.restore(slots[0], owner, tokens, target)
    with pytest.raises(AssertionError, match="belongs to 7, not to 8"):
        snapshots.release(slots[0], 8)
    snapshots.release(slots[0], 7)
    with pytest.raises(AssertionError, match="expected 64 tokens"):
        snapshots.restore(slots[0], 7, 64, target)
    assert snapshots.take(source, 9, 64) == slots[0]


def first(llm: LLM, at: int = 0) -> Session:
    """A live session."""
    return list(llm.memory.sessions.values())[at]


def stored(llm: LLM) -> Prefix:
    """The one stored prefix."""
    found = llm.prefixes.stored()[0].prefix
    assert found is not None
    return found


def share_last_page(llm: LLM) -> None:
    """Make the second session write to the last page of the first, counted as if it were right."""
    one, two = first(llm), first(llm, 1)
    llm.pages.release([two.pages[-1]])
    llm.pages.retain([one.pages[-1]])
    two.pages[-1] = one.pages[-1]


FAULTS: dict[str, tuple[Callable[[LLM], object], str]] = {
    "a page with a reference too many": (lambda llm: llm.pages.retain([1]), "page 1 counts"),
    "a page freed under its holder": (lambda llm: llm.pages.release([1]), "page 1 counts"),
    "a page that nobody holds": (lambda llm: llm.pages.allocate(1), "0 are reachable"),
    "a page list cut short": (lambda llm: first(llm).pages.pop(), "too few pages"),
    "a page held by two writers": (share_last_page, "shares its partly filled page"),
    "a slot that nobody holds": (lambda llm: llm.states.allocate(99), "slots: "),
    "two sessions in one slot": (lambda llm: setattr(first(llm, 1), "slot", first(llm).slot), "held twice"),
    "a session in the scratch slot": (lambda llm: setattr(first(llm), "slot", 0), "slot 0 is scratch"),
    "a state ahead of its session": (lambda llm: llm.states.advance(first(llm).slot, 1), "expected 100 tokens"),
    "a snapshot that nobody holds": (lambda llm: llm.prefixes.snapshots.take(1, 99, 64), "snapshots: "),
    "a snapshot of another count": (
        lambda llm: llm.prefixes.snapshots._tags.__setitem__(stored(llm).slot, Tag(stored(llm).id, 128)),
        "its prefix is",
    ),
    "a dead end": (lambda llm: llm.prefixes.index.place([5] * 64, 64), "ends at 64 tokens"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_books_notice(tiny_models: dict[str, Path], fault: str) -> None:
    """Every kind of entry that does not add up fails the check; without one it passes."""
    llm = LLM(load_checkpoint(tiny_models["hybrid"]), max_tokens=300, max_sessions=4, poison=True)
    llm.run([Request(tokens=[7] * 70, max_tokens=1)])
    for seed in (1, 2):
        llm.prefill([seed + 5] * 100)
    llm.check_integrity()
    plant, said = FAULTS[fault]
    plant(llm)
    with pytest.raises(AssertionError, match=said):
        llm.check_integrity()


def test_names_that_are_not_counted_are_refused() -> None:
    """A counter that is misspelt would stay 0 for ever."""
    counters = Counters()
    counters.add("forks", 2)
    assert counters["forks"] == 2
    with pytest.raises(AssertionError, match="not counted"):
        counters.add("frobs")
