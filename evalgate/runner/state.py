"""Looking at a model's state: one real haystack of a suite through the native engine, beside profiles' codecs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evalgate.backends.state_probe import StateProbe
from evalgate.errors import RefusedError, UnsupportedError
from evalgate.gates.profile import Profile, library, load_profile
from evalgate.records import DocumentId
from evalgate.runner.request import check_seed_set
from evalgate.runner.run import Progress
from evalgate.state_record import CodecState, StateRecord
from evalgate.tasks.haystack import Builder
from evalgate.tasks.packing import Stream
from evalgate.tasks.suite import Suite, load_suite
from evalgate.tasks.task import Task

SEED = 0
"""The haystack that is streamed: the first of its seed set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRequest:
    """Which model, on which haystack, held against which profiles."""

    model: str
    suite: str = "demo"
    length: int | None = None
    """One of the suite's lengths; None: the longest."""
    seed_set: str = "main"
    profiles: Sequence[str] | None = None
    """None: every released profile that compresses the state and can act on this model, largest first."""

    def __post_init__(self) -> None:
        check_seed_set(self.seed_set)


def see_state(request: StateRequest, report: Callable[[Progress], None] = lambda _: None) -> StateRecord:
    """Measure; ``report`` is told tokens.

    Raises UnknownNameError, InvalidDocumentError, TamperedError (documents), RefusedError (length), CheckpointError
    (weights), UnsupportedError (no recurrent state, a profile that cannot act) and DoesNotFitError (window, memory).
    """
    suite = load_suite(request.suite)
    length = _length(suite, request.length)
    named = None if request.profiles is None else [_compressing(name) for name in dict.fromkeys(request.profiles)]
    probe = StateProbe(request.model, max_tokens=length)
    profiles = _all_that_act(probe) if named is None else named
    for profile in profiles:
        probe.add(profile.ref, profile.sections)
    builder = Builder(suite, probe.tokenizer, request.seed_set)
    stream = _fullest(builder.streams, length)
    haystack = builder.build(SEED, stream)
    started = time.monotonic()

    def told(done: int, total: int) -> None:
        report(Progress(done, total, done, done, time.monotonic() - started))

    found = probe.measure(haystack.tokens[: haystack.ends[length]], told)
    (spans,) = (context.needle_spans for context in haystack.contexts if context.length == length)
    keys, values = probe.widths
    return StateRecord(
        model=probe.identity(),
        suite=DocumentId(name=suite.name, version=suite.version, digest=suite.digest),
        seed_set=request.seed_set,
        seed=SEED,
        stream=stream.index,
        length=length,
        facts=len(json.loads(spans)),
        key_width=keys,
        value_width=values,
        positions=found.positions,
        nbytes=probe.state_bytes(),
        layers=found.layers,
        codecs=[
            CodecState(
                profile=profile.id,
                form=_form(profile),
                accumulates=profile.state.codec_every is not None,
                nbytes=probe.state_bytes(profile.ref),
                layers=found.codecs[profile.ref],
            )
            for profile in profiles
        ],
    )


def _length(suite: Suite, asked: int | None) -> int:
    if asked is None:
        return suite.lengths[-1]
    if asked not in suite.lengths:
        known = ", ".join(str(length) for length in suite.lengths)
        raise RefusedError(f"--length {asked}: suite {suite.ref} has no such length; choose one of {known}")
    return asked


def _compressing(name: str) -> Profile:
    """A profile that was asked for; raises UnsupportedError for one that leaves the state as it is."""
    profile = load_profile(name)
    if profile.state.lossless:
        raise UnsupportedError(
            f"profile {profile.ref} leaves the recurrent state as it is, so there is no before and after; name "
            "profiles that compress it, such as state-int8"
        )
    return profile


def _all_that_act(probe: StateProbe) -> list[Profile]:
    released = (load_profile(name) for name in library().names())
    able = [profile for profile in released if not profile.state.lossless and _can(probe, profile)]
    return sorted(able, key=lambda profile: (-probe.state_bytes(profile.ref), profile.ref))


def _can(probe: StateProbe, profile: Profile) -> bool:
    try:
        probe.add(profile.ref, profile.sections)
    except UnsupportedError:
        return False
    return True


def _fullest(streams: Sequence[Stream], length: int) -> Stream:
    """Of the streams that ask at ``length`` the one with most keys: the most that the state has to hold."""
    asking = [stream for stream in streams if any(entry.length == length for entry in stream.entries)]
    return max(asking, key=lambda stream: sum(Task(entry.task).rung for entry in stream.entries))


def _form(profile: Profile) -> str:
    """``int8, every 64 tokens``"""
    state = profile.state
    parts = [] if state.rank is None else [f"rank {state.rank}"]
    if state.dtype != "fp32":
        parts.append(state.dtype)
    if state.error_feedback:
        parts.append("with error feedback")
    when = "once, at the fork" if state.codec_every is None else f"every {state.codec_every:,} tokens"
    return f"{' '.join(parts)}, {when}"
