"""Servers: a real one answers as the engine does, and whatever a network does never becomes a score."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures_server import Fault, Proxy, Served, free_port, group_of, open_backend

from evalgate.backends.server_options import ServerOptions, read_key
from evalgate.errors import CheckpointError, ExitCode, RefusedError, UnknownNameError, UnsupportedError
from evalgate.store import RunFolder

Evalgate = Callable[..., Any]


def test_a_server_answers_as_the_engine_does(evalgate: Evalgate, served: Served, tmp_path: Path) -> None:
    """Trial by trial the same prompts, texts and outcomes; names, counts and the way of asking are in the manifest."""
    words = ("run", "smoke", "--seeds", 1, "--answers", "keep", "--out")
    there = ("--backend", "openai", "--base-url", served.base_url, "--tokenizer", "builtin:hybrid")
    ended = evalgate(*words, tmp_path / "served", "--model", served.model, *there)
    assert ended.code == ExitCode.PASS, ended.err
    assert evalgate(*words, tmp_path / "native", "--model", "builtin:hybrid").code == ExitCode.PASS
    ours, theirs = (RunFolder.open(tmp_path / name) for name in ("native", "served"))
    pairs = list(zip(ours.trials(), theirs.trials(), strict=True))

    assert len(pairs) == 9
    for own, other in pairs:
        assert (own.trial_id, own.prompt_sha256, own.prompt_tokens) == (
            other.trial_id,
            other.prompt_sha256,
            other.prompt_tokens,
        )
        assert (own.answer, own.outcome) == (other.answer, other.outcome)
    engine = theirs.manifest().engine
    assert (engine.backend, engine.device) == ("openai", "server")
    assert engine.effective_profile["server"]["prompt"] == "text"  # type: ignore[index]
    assert engine.effective_profile["server"]["answers_to_any_name"] is False  # type: ignore[index]
    # A profile that nobody can see live is no proof: a release policy does not pass it.
    verdict = evalgate("gate", tmp_path / "served", "--policy", "smoke", "--json")
    assert verdict.code == ExitCode.ERROR
    assert "effective" in verdict.out


def slow(body: Any) -> Any:
    """As it came, later."""
    time.sleep(0.5)
    return body


PASSING: dict[str, Fault] = {
    "429": lambda _: 429,
    "slow": slow,
    "503": lambda _: 503,
    "reset": lambda _: None,
    "html": lambda _: b"<html>gateway</html>",
    "torn": lambda body: json.dumps(body).encode()[:-9],
    "no-utf8": lambda _: b"\xff\xfe{",
}
LASTING: dict[str, tuple[Fault, str]] = {
    "400": (lambda _: 400, "HTTP 400"),
    "null": (lambda body: body | {"choices": [body["choices"][0] | {"text": None}]}, "the text of the answer is None"),
    "other-model": (lambda body: body | {"model": "gpt-x"}, "answered as model 'gpt-x'"),
    "no-model": (lambda body: {k: v for k, v in body.items() if k != "model"}, "answered as model None"),
    "no-usage": (lambda body: {k: v for k, v in body.items() if k != "usage"}, "no usage"),
    "no-choices": (lambda body: body | {"choices": []}, "found 0 choices"),
    "two-choices": (lambda body: body | {"choices": body["choices"] * 2}, "found 2 choices"),
    "filtered": (lambda body: body | {"choices": [body["choices"][0] | {"finish_reason": "content_filter"}]}, "ended"),
    "list": (lambda body: [body], "found list"),
    "said": (lambda body: body | {"error": {"message": "boom"}}, "the server says"),
}


def test_what_passes_is_tried_again(proxy: Proxy, served: Served) -> None:
    """Each fault that may be gone at the next try costs a try and no answer."""
    backend = open_backend(proxy.base_url, served.model, concurrency=3)
    (plain,) = backend.answer(group_of(backend, 1))
    before = backend.counters()["retries"]
    proxy.faults.extend(PASSING.values())
    answers = backend.answer(group_of(backend, 4))

    assert backend.counters()["retries"] - before == len(PASSING) - 1  # all but the slow one
    assert {answer.finish_reason for answer in answers} <= {"stop", "length"}
    assert answers[0].text == plain.text
    assert [answer.trial_id for answer in answers] == [f"trial-{i}" for i in range(4)]


@pytest.mark.parametrize("name", LASTING)
def test_what_is_no_answer_is_an_error(proxy: Proxy, served: Served, name: str) -> None:
    """Kept with its reason, beside the answers that came."""
    backend = open_backend(proxy.base_url, served.model, key="sk-secret")
    fault, reason = LASTING[name]
    proxy.faults.append(fault)
    bad, good = backend.answer(group_of(backend, 2))

    assert bad.finish_reason == "error"
    assert reason in str(bad.error)
    assert "sk-secret" not in str(bad.error)
    assert good.finish_reason in ("stop", "length")
    assert backend.counters()["errors"] == 1
    assert proxy.seen[-1]["Authorization"] == "Bearer sk-secret"


def test_a_server_that_is_always_busy_ends(proxy: Proxy, served: Served) -> None:
    """At the deadline, as an error of that question."""
    backend = open_backend(proxy.base_url, served.model, deadline_s=4.0)
    proxy.faults.extend([lambda _: 500] * 200)
    (answer,) = backend.answer(group_of(backend, 1))
    proxy.faults.clear()

    assert answer.finish_reason == "error"
    assert any(words in str(answer.error) for words in ("HTTP 500", "no answer within"))
    assert answer.latency_s < 10


def test_a_prompt_that_was_cut_is_seen(proxy: Proxy, served: Served) -> None:
    """The server's own count goes into the answer, and the runner holds it against the plan."""
    backend = open_backend(proxy.base_url, served.model)
    proxy.faults.append(lambda body: body | {"usage": body["usage"] | {"prompt_tokens": 5}})
    group = group_of(backend, 1)
    (answer,) = backend.answer(group)

    assert answer.prompt_tokens == 5 != group.asks[0].questions[0].expected_prompt_tokens


def test_what_cannot_be_reached_or_named_is_told(proxy: Proxy, served: Served, tmp_path: Path) -> None:
    """Before the first question: no server, no such model, another tokenizer, incomplete options."""
    with pytest.raises(CheckpointError, match="no model list at"):
        open_backend(f"http://127.0.0.1:{free_port()}/v1", served.model, deadline_s=1.0)
    with pytest.raises(UnknownNameError, match="does not answer as model 'nobody'"):
        open_backend(proxy.base_url, "nobody", deadline_s=5.0)
    proxy.faults.extend([lambda _: 400, lambda body: body | {"usage": body["usage"] | {"prompt_tokens": 99}}])
    with pytest.raises(UnsupportedError, match="counted 99 tokens where the tokenizer has"):
        open_backend(proxy.base_url, served.model)
    with pytest.raises(RefusedError, match="expected an address"):
        ServerOptions(base_url="localhost:8000", tokenizer="builtin:hybrid")
    (tmp_path / "key").write_text("sk-file\n")
    assert read_key(None, tmp_path / "key", {}) == "sk-file"
    assert read_key(None, None, {"OPENAI_API_KEY": "sk-env"}) == "sk-env"
    assert "sk-env" not in repr(ServerOptions(base_url="http://x/v1", tokenizer="t", key="sk-env"))
    with pytest.raises(RefusedError, match="the variable is not set"):
        read_key("NO_KEY", None, {})


def test_incomplete_options_are_refused(evalgate: Evalgate, tmp_path: Path) -> None:
    """By name, before anything is loaded."""
    asked = ("--model", "m", "--backend", "openai", "--out", tmp_path / "run")
    check = ("check", "smoke", "--policy", "smoke", *asked, "--base-url", "http://127.0.0.1:9/v1")
    assert "--tokenizer is missing" in evalgate(*check).err
    words = ("run", "smoke", *asked)
    for more, said in (
        ((), "needs --base-url"),
        (("--base-url", "http://127.0.0.1:9/v1"), "--tokenizer is missing"),
        (("--base-url", "http://127.0.0.1:9/v1", "--tokenizer", "builtin:hybrid", "--header", "x"), "NAME: VALUE"),
    ):
        ended = evalgate(*words, *more)
        assert ended.code == ExitCode.REFUSED
        assert said in ended.err
