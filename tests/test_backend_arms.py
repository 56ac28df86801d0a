"""Arms of the native backend: other ways to the same answer, each proven to have been taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from test_backends import FULL, TEXT, group

from evalgate.backends.base import Ask, Question
from evalgate.backends.native import NativeBackend
from evalgate.backends.paths import odd_cuts
from evalgate.errors import UnsupportedError

ARMS = ("cold", "chunked", "warm", "resumed")


def backend(folder: Path, sections: Mapping[str, Mapping[str, object]] = FULL) -> NativeBackend:
    """A native backend."""
    return NativeBackend(str(folder), sections, profile="test", max_tokens=2048)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_gives_the_answers_of_the_default(trained_or_random: Path, arm: str) -> None:
    """Forks of one prefill, and each other way: token for token the same."""
    native = backend(trained_or_random)
    asked = group(native, ends=(70, 500, 770), max_tokens=8)
    expected = native.answer(asked)
    found = native.answer(asked._replace(asks=[ask._replace(arm=arm) for ask in asked.asks]))
    assert [(a.trial_id, a.token_ids, a.finish_reason, a.prompt_tokens, a.error) for a in found] == [
        (a.trial_id, a.token_ids, a.finish_reason, a.prompt_tokens, a.error) for a in expected
    ]
    cached = [64] * 3 + [448] * 3 + [768] * 3
    assert [a.cached_tokens for a in found] == (cached if arm == "warm" else [0] * 9)
    counts = native.counters()
    assert counts["engine.preemptions.asked"] == (18 if arm == "resumed" else 0)
    assert (counts["engine.prefix.hits"] > 0) == (arm == "warm")
    assert counts["engine.slots.used"] == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"state": {"dtype": "int8", "scales": "per-channel"}},
        {"state": {"rank": 4}},
        {"kv": {"keep": 0.5}},
        {"kv": {"dtype": "int8"}},
    ],
    ids=str,
)
def test_profiles_act_alike_in_all_arms(tiny_models: dict[str, Path], changed: dict[str, dict[str, object]]) -> None:
    """What compresses compresses at the same places, whatever way the question takes."""
    native = backend(tiny_models["hybrid"], changed)
    asked = group(native, ends=(500,), max_tokens=8)
    expected = [a.token_ids for a in native.answer(asked)]
    for arm in ARMS:
        found = native.answer(asked._replace(asks=[ask._replace(arm=arm) for ask in asked.asks]))
        assert [a.token_ids for a in found] == expected, arm


def test_a_way_that_was_not_taken_is_an_error(tiny_models: dict[str, Path]) -> None:
    """A prompt too short to store anything of: the arm ``warm`` says so instead of answering from nothing."""
    native = backend(tiny_models["hybrid"])
    head, _ = (native.tokenizer.encode(piece or "") for piece in native.tokenizer.render_chat()[:2])
    tail = native.tokenizer.encode("Which?")
    asked = group(native, ends=(50,), max_tokens=2)._replace(
        tokens=head + native.tokenizer.encode(TEXT), asks=[Ask(10, [Question(tail, 10 + len(tail), "t")], "warm")]
    )
    (answer,) = native.answer(asked)
    assert (answer.finish_reason, answer.error) == ("error", "no stored prefix was found for it")


def test_warm_is_refused_where_nothing_is_stored(tiny_models: dict[str, Path]) -> None:
    """A profile without prefix cache cannot do the arm, and is told so before the run."""
    native = backend(tiny_models["hybrid"], {"cache": {"prefix": False}})
    with pytest.raises(UnsupportedError, match="arm 'warm'"):
        native.engine_id(1024, ["default", "warm"])
    assert native.engine_id(1024, ["cold", "resumed"]).arm_paths == {"cold": "cold", "resumed": "preempted-twice"}


def test_odd_cuts_lie_beside_grid_points() -> None:
    """Chunks of 192 tokens, and cuts one token before and after a quarter, half and all of the context."""
    cuts = odd_cuts(1000, 1030)
    assert set(range(192, 1030, 192)) <= set(cuts)
    assert {191, 193, 447, 449, 959, 961} <= set(cuts)
    assert list(cuts) == sorted(set(cuts))
