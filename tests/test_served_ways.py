"""Ways of asking a server: chat, streams, bounds, the arms that prove themselves, and what it publishes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
from fixtures_server import Proxy, Served, group_of, open_backend

from evalgate.backends.base import Answer, Ask, Group
from evalgate.backends.event_loop import EventLoop
from evalgate.backends.http_client import PassingError, ServerError
from evalgate.backends.salt import Salt
from evalgate.backends.served import ServedBackend
from evalgate.backends.server_facts import read_metrics
from evalgate.errors import ExitCode
from evalgate.records import Trial
from evalgate.runner import RunRequest, prepare, run_suite
from evalgate.store import RunFolder

Evalgate = Callable[..., Any]
WORDS = ("run", "smoke", "--seeds", 1, "--answers", "keep", "--out")
METRICS = """# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
vllm:prefix_cache_queries_total{engine="0",model_name="m"} %d.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1.5e+03
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 500.0
vllm:prefix_cache_hits_created{engine="0",model_name="m"} 1.796134873354653e+09
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.%d
vllm:cache_config_info{block_size="256",cache_dtype="auto",enable_prefix_caching="True",engine="0"} 1.0
"""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    """Trials of the engine itself."""
    asked = RunRequest(suite="smoke", model="builtin:hybrid", seeds=1, answers="keep")
    return run_suite(prepare(asked), tmp_path_factory.mktemp("native") / "run").trials()


@pytest.mark.parametrize(
    "options",
    [
        ("--api", "chat"),
        ("--stream",),
        ("--api", "chat", "--stream", "--concurrency", 1),
        ("--concurrency", 8),
        ("--concurrency", 32),
    ],
)
def test_every_way_gives_the_same(
    evalgate: Evalgate, proxy: Proxy, served: Served, ours: list[Trial], tmp_path: Path, options: tuple[Any, ...]
) -> None:
    """Prompts, texts and outcomes are those of the engine; streams are timed; no more at once than was allowed."""
    there = ("--backend", "openai", "--base-url", proxy.base_url, "--tokenizer", "builtin:hybrid", *options)
    proxy.at_once.clear()
    ended = evalgate(*WORDS, tmp_path / "run", "--model", served.model, *there)
    assert ended.code == ExitCode.PASS, ended.err
    run = RunFolder.open(tmp_path / "run")
    theirs = run.trials()

    assert [(t.trial_id, t.prompt_sha256, t.prompt_tokens, t.answer, t.outcome, t.error) for t in theirs] == [
        (t.trial_id, t.prompt_sha256, t.prompt_tokens, t.answer, t.outcome, "") for t in ours
    ]
    assert all((0 < t.first_token_s <= t.latency_s) == ("--stream" in options) for t in theirs)
    allowed = options[-1] if "--concurrency" in options else 8
    assert max(proxy.at_once) <= allowed
    assert (max(proxy.at_once) > 1) == (allowed > 1)
    server = run.manifest().engine.effective_profile["server"]
    assert isinstance(server, dict)
    assert (server["api"], server["stream"]) == ("chat" if "chat" in options else "completions", "--stream" in options)
    assert run.manifest().hardware["server"] == proxy.base_url


def test_the_first_token_is_timed_when_it_comes(served: Served) -> None:
    """Long before the last, where an answer has many."""
    backend = open_backend(served.base_url, served.model, stream=True)
    group = group_of(backend, 1)._replace(max_tokens=60, stop_ids=frozenset())
    tokens = backend.tokenizer.encode("The")
    asked = Ask(len(tokens), [group.asks[0].questions[0]._replace(tail=backend.tokenizer.encode(" guard hid eleven"))])
    (answer,) = backend.answer(group._replace(tokens=tokens, asks=[asked]))

    assert len(answer.token_ids) > 5
    assert 0 < answer.first_token_s < 0.7 * answer.latency_s


def test_what_is_under_way_ends_with_the_loop() -> None:
    """Whoever waits for it is told; what was to be done last is done."""
    loop, done = EventLoop(), []
    waiting = loop.start(asyncio.sleep(600))

    async def last() -> None:
        done.append(True)

    loop.close(last)
    with pytest.raises(CancelledError):
        waiting.result(10)
    assert done


def test_streams_that_break_off(proxy: Proxy, served: Served) -> None:
    """What is torn, is no JSON or was cut is asked again; an error in a stream or another model's name is kept."""
    backend = open_backend(proxy.base_url, served.model, stream=True, concurrency=1)
    (plain,) = backend.answer(group_of(backend, 1))
    before = backend.counters()["retries"]
    passing: list[Callable[[str], Any]] = [
        lambda text: text[: len(text) // 2].rpartition("data:")[0].encode(),
        lambda _: b"data: {torn\n\n",
        lambda _: b"<html>gateway</html>",
        lambda _: None,
        lambda _: 503,
    ]
    proxy.faults.extend(passing)
    (answer,) = backend.answer(group_of(backend, 1))
    assert backend.counters()["retries"] - before == len(passing)
    assert answer.text == plain.text

    lasting: dict[str, Callable[[str], bytes]] = {
        "server-said": lambda _: b'data: {"error": "boom"}\n\n',
        "other-model": lambda text: text.replace(served.model, "gpt-x").encode(),
        "no-usage": lambda text: text.replace('"usage"', '"used"').encode(),
        "no-choice": lambda text: text.replace('"choices":[', '"choices":[{},').encode(),
    }
    for code, fault in lasting.items():
        proxy.faults.append(fault)
        (answer,) = backend.answer(group_of(backend, 1))
        assert (answer.finish_reason, answer.error_code) == ("error", code), answer.error


def asked_as(backend: ServedBackend, arm: str, questions: int = 1) -> Group:
    """A group under another arm."""
    group = group_of(backend, questions)
    return group._replace(asks=[Ask(ask.context_end, ask.questions, arm) for ask in group.asks])


def cached(tokens: int) -> Callable[[Any], Any]:
    """A fault: the server counts so many cached tokens."""
    return lambda body: body | {"usage": body["usage"] | {"prompt_tokens_details": {"cached_tokens": tokens}}}


def test_cold_prompts_are_new_to_any_cache(proxy: Proxy, served: Served) -> None:
    """Each has a salt of its own near its start, and the plan's tokens beside it; one that was cached is no answer."""
    backend = open_backend(proxy.base_url, served.model)
    proxy.asked.clear()
    answers = backend.answer(asked_as(backend, "cold", questions=6))
    prompts = [body["prompt"] for body in proxy.asked]
    expected = [question.expected_prompt_tokens for question in group_of(backend, 6).asks[0].questions]

    assert len({prompt[:12] for prompt in prompts}) == len(prompts) == 6
    assert all("The access number" in prompt and prompt[:12].isdigit() for prompt in prompts)
    assert [answer.prompt_tokens for answer in answers] == expected
    assert backend.engine_id(100, ("cold",)).arm_paths["cold"].startswith("salted-")
    proxy.asked.clear()
    proxy.faults.extend([cached(40), cached(0)])
    (answer,) = backend.answer(asked_as(backend, "cold"))
    assert (answer.error_code, len(proxy.asked)) == ("", 2)
    proxy.faults.extend([cached(40)] * 3)
    (answer,) = backend.answer(asked_as(backend, "cold"))
    assert (answer.finish_reason, answer.error_code) == ("error", "cached-in-cold")


def test_a_cold_chat_has_its_salt_before_the_users_words(proxy: Proxy, served: Served) -> None:
    """The template stays the server's; the plan's tokens hold as in the arm without salt."""
    backend = open_backend(proxy.base_url, served.model, api="chat")
    head, tail = (backend.tokenizer.encode(piece) for piece in backend.tokenizer.render_chat()[:2])
    plain = group_of(backend, 1)
    tails = [question._replace(tail=question.tail + tail) for question in plain.asks[0].questions]
    tokens = head + plain.tokens
    asked = [q._replace(expected_prompt_tokens=len(tokens) + len(q.tail)) for q in tails]
    proxy.asked.clear()
    (answer,) = backend.answer(plain._replace(tokens=tokens, asks=[Ask(len(tokens), asked, "cold")]))
    (message,) = proxy.asked[0]["messages"]

    assert (answer.error, answer.prompt_tokens) == (None, asked[0].expected_prompt_tokens)
    assert message["content"][:12].isdigit()
    assert message["content"][12:].startswith("\nThe access number")


def test_warm_is_proven_by_hits(proxy: Proxy, served: Served) -> None:
    """A prompt is repeated until the server counts cached tokens; without any it is no answer."""
    backend = open_backend(proxy.base_url, served.model)
    proxy.asked.clear()
    proxy.faults.extend([cached(0), cached(0), cached(7)])
    (answer,) = backend.answer(asked_as(backend, "warm"))
    assert (answer.error_code, answer.cached_tokens, len(proxy.asked)) == ("", 7, 3)
    (answer,) = backend.answer(asked_as(backend, "warm"))
    assert (answer.finish_reason, answer.error_code) == ("error", "no-hits")
    assert "--enable-prompt-tokens-details" in str(answer.error)


def test_an_answer_to_another_question_is_seen(proxy: Proxy, served: Served) -> None:
    """One that came before is asked for again; two that were swapped have the wrong number of prompt tokens."""
    backend = open_backend(proxy.base_url, served.model, concurrency=2)
    bodies: list[Any] = []

    def keep(body: Any) -> Any:
        bodies.append(body)
        return body

    proxy.faults.append(keep)
    (plain,) = backend.answer(group_of(backend, 1))
    proxy.faults.append(lambda _: bodies[0])
    before = backend.counters()["retries"]
    (again,) = backend.answer(group_of(backend, 1))
    assert backend.counters()["retries"] - before == 1
    assert again.text == plain.text

    both, meeting = {}, threading.Barrier(2, timeout=60)

    def swap(name: str, other: str) -> Callable[[Any], Any]:
        def fault(body: Any) -> Any:
            both[name] = body
            meeting.wait()
            return both[other]

        return fault

    group = group_of(backend, 2)
    long = backend.tokenizer.encode("What is the access number of the amber harbour?")
    (ask,) = group.asks
    second = ask.questions[1]._replace(tail=long, expected_prompt_tokens=ask.context_end + len(long))
    one, two = (Ask(ask.context_end, [question]) for question in (ask.questions[0], second))
    proxy.faults.extend([swap("a", "b"), swap("b", "a")])
    answers = list(backend.answer_all([group._replace(asks=[one]), group._replace(asks=[two])]))
    for (answer,), asked in zip(answers, (one, two), strict=True):
        assert answer.prompt_tokens != asked.questions[0].expected_prompt_tokens


def test_odd_texts_are_kept(proxy: Proxy, served: Served) -> None:
    """No tokens at all is an empty answer; half a surrogate pair becomes a character that can be written."""
    backend = open_backend(proxy.base_url, served.model)

    def says(text: str, tokens: int) -> Answer:
        usage = {"completion_tokens": tokens}
        proxy.faults.append(
            lambda body: body | {"choices": [body["choices"][0] | {"text": text}], "usage": body["usage"] | usage}
        )
        return backend.answer(group_of(backend, 1))[0]

    assert (says("", 0).text, says("", 0).error_code) == ("", "")
    half = says("\ud800 12", 2)
    assert half.text.encode() == b"? 12"
    assert half.token_ids


def test_what_a_server_publishes(proxy: Proxy, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version and cache settings are in the engine's identity; what its counters rose by is among the run's own."""
    monkeypatch.setattr("evalgate.backends.server_facts.LOOK_S", 0.0)
    proxy.pages["/version"] = b'{"version": "0.32.0"}'
    proxy.pages["/metrics"] = (METRICS % (4000, 25)).encode()
    backend = open_backend(proxy.base_url, served.model)
    proxy.pages["/metrics"] = (METRICS % (9000, 75)).encode()
    backend.answer(group_of(backend, 1))
    proxy.pages["/metrics"] = (METRICS % (9500, 10)).encode()
    counters = backend.counters()
    server = backend.engine_id(100, ("default",)).effective_profile["server"]

    assert isinstance(server, dict)
    assert server["version"] == "0.32.0"
    assert server["cache"]["cache_dtype"] == "auto"
    assert counters["server.vllm:prefix_cache_queries_total"] == 5500
    assert counters["server.vllm:prefix_cache_hits_total"] == 0
    assert counters["server.vllm:kv_cache_usage_perc.most_permille"] == 750
    assert read_metrics(METRICS % (1, 5))[0]["vllm:prefix_cache_hits_total"] == 2000
    assert not any("created" in name for name in counters)
    assert not read_metrics("<html>not metrics</html>\n# x 1\n")[0]


def test_identity_is_what_lasts(proxy: Proxy, served: Served) -> None:
    """Times and drawn names of a card change at every start and make no other model; a window does."""

    def digest(**fields: Any) -> str:
        card = {"id": served.model, "object": "model", "owned_by": "x", "max_model_len": 4096} | fields
        proxy.pages["/v1/models"] = json.dumps({"object": "list", "data": [card]}).encode()
        return open_backend(proxy.base_url, served.model).identity().weights_sha256

    first = digest(created=1, permission=[{"id": "modelperm-1"}])
    assert digest(created=2, permission=[{"id": "modelperm-2"}]) == first
    assert digest(max_model_len=8192) != first


def test_a_clock_that_jumps_changes_no_deadline(proxy: Proxy, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines are held by a clock that no one sets."""
    backend = open_backend(proxy.base_url, served.model, deadline_s=30.0)
    proxy.faults.extend([lambda _: 429] * 2)
    hours = iter(range(0, 10**9, 3600))
    monkeypatch.setattr("time.time", lambda: float(next(hours)))
    (answer,) = backend.answer(group_of(backend, 1))

    assert answer.finish_reason != "error"


def test_salts_have_one_number_of_tokens() -> None:
    """The commonest, also where a tokenizer splits digits unequally; and none is drawn twice."""
    salt = Salt(lambda text: [int(digit) for digit in text.strip()][: 11 if text[0] in "01" else 12])
    drawn = [salt.draw() for _ in range(200)]

    assert salt.tokens == 12
    assert {len(ids) for ids in drawn} == {12}
    assert len({tuple(ids) for ids in drawn}) == 200


def test_a_chat_holds_one_message(served: Served, proxy: Proxy) -> None:
    """What is no one message of a user in the template is not sent, and told."""
    backend = open_backend(proxy.base_url, served.model, api="chat")
    proxy.asked.clear()
    (answer,) = backend.answer(group_of(backend, 1))

    assert (answer.finish_reason, answer.error_code) == ("error", "no-chat")
    assert not proxy.asked


def test_codes_say_nothing_of_prompts() -> None:
    """A code is one word, whatever the message holds."""
    assert ServerError("http-400", "the prompt was: secret").code == "http-400"
    assert PassingError("timeout", "x", 1.0).wait_s == 1.0
