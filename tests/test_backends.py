"""The backend port: native and transformers give the same answers, and say what they did."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evalgate.backends.base import Answer, Ask, Backend, Group, Question
from evalgate.backends.native import NativeBackend
from evalgate.backends.registry import open_backend
from evalgate.errors import CheckpointError, DoesNotFitError, UnknownNameError, UnsupportedError
from evalgate.gates.profile import load_profile

FULL = load_profile("full").sections
TEXT = "The ferry to the northern islands leaves from pier nine when the tide allows it. "


@pytest.fixture(scope="module")
def backends(trained_or_random: Path) -> tuple[Backend, Backend]:
    """Native and transformers on one model."""
    native = open_backend("native", str(trained_or_random), FULL, "full", max_tokens=2048)
    return native, open_backend("hf", str(trained_or_random), FULL, "full")


def group(backend: Backend, *, ends: tuple[int, ...] = (50, 64, 500, 770), max_tokens: int = 12) -> Group:
    """Questions of unequal length about one text, at context ends around grid positions."""
    tokenizer = backend.tokenizer
    head, tail = (tokenizer.encode(piece or "") for piece in tokenizer.render_chat()[:2])
    tokens = (head + tokenizer.encode(TEXT * 40))[: max(ends)]
    numbers = itertools.count()
    asks = []
    for end in ends:
        tails = [tokenizer.encode(f"Which pier{', please' * n}?") + tail for n in range(3)]
        questions = [Question(t, end + len(t), f"trial-{next(numbers)}") for t in tails]
        asks.append(Ask(end, questions))
    return Group(tokens, len(head), asks, max_tokens, tokenizer.eos_ids)


def said(answers: list[Answer]) -> list[tuple[Any, ...]]:
    """What must agree between backends."""
    return [(a.trial_id, a.token_ids, a.text, a.finish_reason, a.prompt_tokens, a.error) for a in answers]


def test_native_and_transformers_agree_answer_for_answer(backends: tuple[Backend, Backend]) -> None:
    """The same trials in the same order, token for token, from the forks of both and from full prompts."""
    native, hf = backends
    asked = group(native)
    found = native.answer(asked)
    whole = asked._replace(asks=[Ask(ask.context_end, ask.questions, "cold") for ask in asked.asks])
    assert said(found) == said(hf.answer(asked)) == said(hf.answer(whole))
    assert [a.trial_id for a in found] == [q.trial_id for ask in asked.asks for q in ask.questions]
    assert [a.cached_tokens for a in found] == [0] * 3 + [64] * 3 + [448] * 3 + [768] * 3


def test_identity_and_settings_agree(backends: tuple[Backend, Backend]) -> None:
    """Both name the same weights, configuration, tokenizer and profile, and measure the same state and cache."""
    native, hf = backends
    a, b = native.identity(), hf.identity()
    assert a == b
    engine, other = native.engine_id(1024, ["default"]), hf.engine_id(1024, ["default"])
    assert engine.effective_profile == effective(FULL)
    assert other.effective_profile.keys() == {"state", "snapshot", "kv", "forks", "transformers"}
    for section in ("state", "snapshot", "kv"):
        assert other.effective_profile[section] == effective(FULL)[section]
    assert engine.arm_paths == other.arm_paths == {"default": "fork"}
    for part in ("state", "kv"):
        assert engine.bytes_per_session[part] == other.bytes_per_session[part]


def test_counters_account_for_every_token(trained_or_random: Path) -> None:
    """Haystack tokens are taken in once, forks' own tokens and reused ones add up to the prompts."""
    native = open_backend("native", str(trained_or_random), FULL, "full", max_tokens=2048)
    answers = native.answer(group(native))
    counters = native.counters()
    assert counters["prefilled_tokens"] == 768
    assert counters["forks"] == 12
    assert counters["errors"] == 0
    assert counters["fork_tokens"] + counters["reused_tokens"] == sum(a.prompt_tokens for a in answers)
    assert counters["decoded_tokens"] == sum(len(a.token_ids) for a in answers)


def test_more_questions_than_sessions_are_answered_in_batches(backends: tuple[Backend, Backend]) -> None:
    """Forty questions of one ask: all answered, in order, as in a batch of their own."""
    native, _ = backends
    one = group(native, ends=(300,), max_tokens=4)
    question = one.asks[0].questions[0]
    many = [question._replace(trial_id=str(n)) for n in range(40)]
    answers = native.answer(one._replace(asks=[Ask(300, many)]))
    assert [a.trial_id for a in answers] == [str(n) for n in range(40)]
    assert len({tuple(a.token_ids) for a in answers}) == 1
    assert len({a.batch_id for a in answers}) == 3


def test_a_prompt_of_another_length_than_planned_is_an_error(backends: tuple[Backend, Backend]) -> None:
    """Every backend counts the prompt and says so when the plan counted otherwise; nothing is scored in silence."""
    for backend in backends:
        asked = group(backend, ends=(64,), max_tokens=2)
        wrong = [q._replace(expected_prompt_tokens=q.expected_prompt_tokens - 1) for q in asked.asks[0].questions[:1]]
        (answer,) = backend.answer(asked._replace(asks=[Ask(64, wrong)]))
        assert answer.finish_reason == "error"
        assert answer.error is not None
        assert "expected" in answer.error


def test_what_does_not_fit_is_refused_before_the_first_token(tiny_models: dict[str, Path]) -> None:
    """Longer than the window, or than asked for at opening: refused, with what fits."""
    folder = str(tiny_models["hybrid"])
    for name in ("native", "hf"):
        with pytest.raises(DoesNotFitError, match="at most 16384 fit"):
            open_backend(name, folder, FULL, "full", max_tokens=20000)
        backend = open_backend(name, folder, FULL, "full", max_tokens=300)
        with pytest.raises(DoesNotFitError, match="at most 300 fit"):
            backend.answer(group(backend, ends=(64, 290)))
        assert not any(count for name, count in backend.counters().items() if not name.endswith(".free"))


def test_unknown_arms_are_refused(backends: tuple[Backend, Backend]) -> None:
    """An arm that a backend cannot do is refused, and never quietly another one."""
    for backend in backends:
        with pytest.raises(UnsupportedError, match="arm 'load'"):
            backend.engine_id(1024, ["default", "load"])


def effective(asked: Mapping[str, Mapping[str, object]]) -> dict[str, Mapping[str, object]]:
    """What an engine that computes in float32 reports when it did as asked."""
    kv = asked["kv"]
    return {**asked, "kv": {**kv, "dtype": "fp32"} if kv["dtype"] == "auto" else kv}


def changed(section: str, **settings: object) -> Mapping[str, Mapping[str, object]]:
    """Profile ``full`` with some settings of one section changed."""
    return {**FULL, section: {**FULL[section], **settings}}


@pytest.mark.parametrize(
    "profile",
    [
        "full",
        "state-bf16",
        "state-int8",
        "state-int4",
        "state-rank-8",
        "state-rank-1",
        "state-int8-feedback",
        "state-int4-feedback",
        "snapshot-bf16",
        "snapshot-int8",
        "kv-bf16",
        "kv-fp8",
        "kv-int8",
        "kv-keep-75",
        "kv-window-512",
    ],
)
def test_profiles_are_effective_as_asked(profile: str, tiny_models: dict[str, Path]) -> None:
    """Every shipped profile is applied and read back, setting for setting, and questions are answered under it."""
    asked = load_profile(profile).sections
    native = open_backend("native", str(tiny_models["hybrid"]), asked, profile, max_tokens=2048)
    assert native.engine_id(2048, ["default"]).effective_profile == effective(asked)
    answers = native.answer(group(native, ends=(500,), max_tokens=3))
    assert {a.finish_reason for a in answers} <= {"stop", "length"}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (changed("state", error_feedback=True), r"state\.error_feedback: expected state\.dtype int8 or int4"),
        (changed("state", dtype="int8"), r"state\.scales is None"),
        (changed("state", dtype="fp8"), r"state\.dtype is 'fp8', expected fp32 or bf16 or int8 or int4"),
        (changed("state", rank=16), r"state\.rank 16"),
        (changed("state", rank=2.0), r"state\.rank is 2\.0"),
        (changed("snapshot", dtype="int3"), r"snapshot\.dtype is 'int3'"),
        (changed("kv", dtype="int4"), r"kv\.dtype is 'int4'"),
        (changed("kv", keep=True), r"kv\.keep is True"),
        (changed("cache", snapshot_interval=0), r"cache\.snapshot_interval"),
        (changed("cache", eviction="lru"), r"cache\.eviction"),
        (changed("cache", page=0), r"cache\.page"),
        (changed("kv", keeep=0.5), r"unknown setting kv\.keeep; did you mean keep"),
        ({**FULL, "attention": {}}, "unknown section 'attention'"),
    ],
    ids=lambda value: value.replace("\\", "") if isinstance(value, str) else "",
)
def test_settings_that_the_engine_cannot_do_are_refused(
    sections: Mapping[str, Mapping[str, object]], message: str, tiny_models: dict[str, Path]
) -> None:
    """Refused by name before any weight is read; never ignored."""
    with pytest.raises(UnsupportedError, match=message):
        open_backend("native", str(tiny_models["hybrid"]), sections, "mine")


def test_transformers_refuses_compression(tiny_models: dict[str, Path]) -> None:
    """The oracle runs uncompressed or not at all."""
    with pytest.raises(UnsupportedError, match=r"backend hf cannot do state\.dtype 'bf16'"):
        open_backend("hf", str(tiny_models["hybrid"]), changed("state", dtype="bf16", codec_every=64), "state-bf16")


@pytest.mark.parametrize("profile", ["full", "state-rank-2", "state-int4", "kv-keep-50", "kv-window-512"])
def test_without_prefix_reuse_the_answers_are_the_same(profile: str, tiny_models: dict[str, Path]) -> None:
    """Cold prompts are compressed at the same places as forks, so every arm remembers alike."""
    sections = load_profile(profile).sections
    fork = open_backend("native", str(tiny_models["hybrid"]), sections, profile, max_tokens=2048)
    cold_sections = {**sections, "cache": {**sections["cache"], "prefix": False}}
    cold = open_backend("native", str(tiny_models["hybrid"]), cold_sections, profile, max_tokens=2048)
    assert cold.arms()["default"] == "cold"
    asked = group(fork)
    answers = cold.answer(asked)
    assert said(answers) == said(fork.answer(asked))
    assert {a.cached_tokens for a in answers} == {0}


def test_small_pages_and_chunks_change_no_answer(tiny_models: dict[str, Path]) -> None:
    """Pages that are smaller than the grid, or larger, are the same cache."""
    whole = open_backend("native", str(tiny_models["hybrid"]), FULL, "full", max_tokens=2048)
    expected = said(whole.answer(group(whole)))
    for page, chunk in ((16, 64), (100, 128)):
        backend = open_backend(
            "native",
            str(tiny_models["hybrid"]),
            changed("cache", page=page, prefill_chunk=chunk),
            "mine",
            max_tokens=2048,
        )
        assert said(backend.answer(group(backend))) == expected


def test_names_that_do_not_exist(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """A backend, an embedded model, a folder, a hub id and a dtype that are not there are each named."""
    folder = str(tiny_models["hybrid"])
    with pytest.raises(UnknownNameError, match="unknown backend 'nativ'; did you mean native"):
        open_backend("nativ", folder, FULL, "full")
    with pytest.raises(UnknownNameError, match="unknown embedded model 'hybird'"):
        open_backend("native", "builtin:hybird", FULL, "full")
    with pytest.raises(CheckpointError, match="no such checkpoint folder"):
        open_backend("native", str(tmp_path / "nowhere"), FULL, "full")
    with pytest.raises(CheckpointError, match="could not be fetched"):
        open_backend("native", "nobody-here/no-such-model", FULL, "full")
    for name in ("native", "hf"):
        with pytest.raises(UnsupportedError, match="dtype 'fp4'"):
            open_backend(name, folder, FULL, "full", dtype="fp4")


def test_the_parent_is_released_after_every_group(tiny_models: dict[str, Path]) -> None:
    """Answering leaves no session behind, whether it went well or not."""
    backend = NativeBackend(str(tiny_models["hybrid"]), FULL, profile="full", max_tokens=600)
    llm = backend._llm
    free = (llm.states.free, llm.pages.free)
    backend.answer(group(backend, ends=(300,)))
    with pytest.raises(DoesNotFitError):
        backend.answer(group(backend, ends=(300, 599)))
    assert (llm.states.free, llm.pages.free) == free
