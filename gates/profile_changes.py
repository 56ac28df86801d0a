"""What differs between two profiles, in words; harsher is whatever keeps less of the context or rounds more often."""

from __future__ import annotations

import json
from collections.abc import Iterator

from evalgate.gates.profile import Profile
from evalgate.release import Change, Direction

# Smaller is harsher. Types of one rank differ in kind, so neither is known to be as good as the other.
DTYPES = {"fp32": 4, "auto": 3, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0}


def profile_changes(old: Profile, new: Profile) -> list[Change]:
    """List every difference in the settings of two profiles, what is harsher first."""
    found = [*_state(old, new), *_stored(old, new), *_kv(old, new), *_shape(old, new)]
    order: list[Direction] = ["weaker", "stronger", "other"]
    return sorted(found, key=lambda change: order.index(change.direction))


def _state(old: Profile, new: Profile) -> Iterator[Change]:
    yield from _dtype("state.dtype", old.state.dtype, new.state.dtype)
    yield from _limit("state.rank", old.state.rank, new.state.rank)
    yield from _limit("state.codec_every", old.state.codec_every, new.state.codec_every)
    before, after = old.state.error_feedback, new.state.error_feedback
    quantised = {"int8", "int4"} >= {old.state.dtype, new.state.dtype}
    if before != after:
        direction: Direction = "other" if not quantised else "weaker" if before else "stronger"
        yield Change(direction, f"state.error_feedback: {_said(before)} -> {_said(after)}")
    if old.state.scales != new.state.scales:
        yield Change("other", f"state.scales: {_said(old.state.scales)} -> {_said(new.state.scales)}")


def _stored(old: Profile, new: Profile) -> Iterator[Change]:
    yield from _dtype("snapshot.dtype", old.snapshot.dtype, new.snapshot.dtype)
    before, after = old.cache.prefix, new.cache.prefix
    if before != after:
        words = f"cache.prefix: {_said(before)} -> {_said(after)}"
        yield Change("weaker", f"{words}: stored states are reused") if after else Change("stronger", words)
    ours, theirs = old.cache.snapshot_interval, new.cache.snapshot_interval
    if ours != theirs:
        # A state that comes back from a lossy store is rounded, and a shorter interval stores and restores more often.
        lossy = new.snapshot.dtype != "fp32"
        direction: Direction = "other" if not lossy else "weaker" if theirs < ours else "stronger"
        yield Change(direction, f"cache.snapshot_interval: {ours} -> {theirs}")


def _kv(old: Profile, new: Profile) -> Iterator[Change]:
    yield from _dtype("kv.dtype", old.kv.dtype, new.kv.dtype)
    yield from _limit("kv.keep", old.kv.keep, new.kv.keep)
    yield from _limit("kv.window", old.kv.window, new.kv.window)


def _shape(old: Profile, new: Profile) -> Iterator[Change]:
    for field in ("eviction", "page", "prefill_chunk"):
        before, after = getattr(old.cache, field), getattr(new.cache, field)
        if before != after:
            yield Change("other", f"cache.{field}: {before} -> {after}")


def _dtype(field: str, old: str, new: str) -> Iterator[Change]:
    if old != new:
        harsher = DTYPES[new] <= DTYPES[old]
        yield Change("weaker" if harsher else "stronger", f"{field}: {old} -> {new}")


def _limit(field: str, old: float | None, new: float | None) -> Iterator[Change]:
    """A number of which less keeps less; null keeps all."""
    if old != new:
        harsher = new is not None and (old is None or new < old)
        yield Change("weaker" if harsher else "stronger", f"{field}: {_said(old)} -> {_said(new)}")


def _said(value: object) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
