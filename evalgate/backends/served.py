"""Servers that speak the OpenAI interface: vLLM, SGLang, TensorRT-LLM, llama.cpp, transformers serve, hosted ones.

Prompts go as token ids where the server takes them, else as text that is checked to become the same ids.  Questions of
one context go after its first has been answered, so that the server's own prefix cache can hold the context.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from evalgate import __version__
from evalgate.backends.base import Answer, Ask, Group, Question, check_arms
from evalgate.backends.completion import PATHS, Completion, joined, read_completion, request_body, said
from evalgate.backends.event_loop import EventLoop
from evalgate.backends.http_client import HttpClient, PassingError, ServerError
from evalgate.backends.models import find_model
from evalgate.backends.prompt_form import PromptForm
from evalgate.backends.server_facts import ServerFacts, card_of, names_of
from evalgate.backends.server_options import ServerOptions
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.errors import CheckpointError, DoesNotFitError, UnknownNameError, UnsupportedError, nearest
from evalgate.records import EngineId, ModelId

CONTROL = "-evalgate-no-such-model"
"""Added to the served name: a server that answers to it answers to any name."""
CONTROL_S = 5.0
"""Seconds after which a server that does not answer to it counts as one that will not."""
UNKNOWN_WINDOW = 1 << 31
TRIES = {"cold": 3, "warm": 5}
"""Arms that prove themselves by the server's count of cached tokens -> times that a question is asked for it."""
PROBE = "The context."


class Timed(NamedTuple):
    """An answer and the seconds to its first words; 0: not measured."""

    completion: Completion
    first_s: float


class ServedBackend:
    """A model behind a server; the profile is what the server was started with, which it cannot prove."""

    def __init__(self, model: str, options: ServerOptions, *, max_tokens: int | None = None) -> None:
        """Reach the server and ask it once.

        Raises CheckpointError (no server, or none that answers), UnknownNameError (no such model there),
        UnsupportedError (prompts would become other tokens) or DoesNotFitError (``max_tokens`` above its window).
        """
        self.tokenizer = ModelTokenizer(find_model(options.tokenizer))
        self._model, self._options = model, options
        self._counters: Counter[str] = Counter()
        self._known: set[str | None] = set()
        self._names_answers = False
        self._loop = EventLoop()
        self._http = HttpClient(
            options.base_url,
            headers=options.headers,
            key=options.key,
            concurrency=options.concurrency,
            deadline_s=options.deadline_s,
            counters=self._counters,
        )
        weakref.finalize(self, self._loop.close, self._http.close)
        self._form = PromptForm(self.tokenizer, options.api)
        self._facts = ServerFacts(self._http)
        self._loop.run(self._open())
        limit = self._card.get("max_model_len")
        self._limit = limit if isinstance(limit, int) else None
        if max_tokens is not None and self._limit is not None and max_tokens > self._limit:
            raise DoesNotFitError(f"{max_tokens} tokens asked for, the server takes {self._limit}; ask shorter lengths")
        self._window = max_tokens or self._limit or UNKNOWN_WINDOW

    @property
    def window(self) -> int:
        """Most tokens that a prompt and its answer may have."""
        return self._window

    @property
    def model_window(self) -> int | None:
        """As the server publishes it."""
        return self._limit

    def identity(self) -> ModelId:
        """The served name and what the server publishes of it: weights cannot be seen through a server."""
        told: dict[str, object] = {"model": self._model, "card": self._card}
        digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()
        return ModelId(
            name=self._model,
            architecture="served",
            parameters=0,
            weights_sha256=digest,
            config_sha256=digest,
            tokenizer_sha256=self.tokenizer.sha256,
        )

    def arms(self) -> dict[str, str]:
        """Arms that this backend can do -> path taken."""
        return {
            "default": "prefix-order",
            "cold": f"salted-{self._form.salt.tokens}-tokens",
            "warm": "repeated-until-cached",
        }

    def engine_id(self, longest: int, arms: Sequence[str]) -> EngineId:
        """What is known of the server; it shows no setting of a profile, and no bytes."""
        if longest > self._window:
            raise DoesNotFitError(f"{longest} tokens asked for, the server takes {self._window}")
        asked = self._options
        known: dict[str, object] = {
            "api": asked.api,
            "prompt": "token ids" if self._form.as_ids else "text",
            "stream": asked.stream,
            "concurrency": asked.concurrency,
            "answers_to_any_name": self._any_name,
            **{name: self._card[name] for name in ("max_model_len", "owned_by", "root") if name in self._card},
            **({"version": self._facts.version} if self._facts.version else {}),
            **({"cache": dict(self._facts.settings)} if self._facts.settings else {}),
        }
        return EngineId(
            backend="openai",
            version=__version__,
            dtype="unknown",
            device="server",
            arm_paths=check_arms(arms, self.arms()),
            effective_profile={"server": known},
            bytes_per_session={},
        )

    def counters(self) -> dict[str, int]:
        """Requests, retries, errors and tokens; under ``server.`` what its own metrics rose by meanwhile."""
        self._loop.run(self._facts.look())
        return dict(self._counters) | {f"server.{name}": value for name, value in self._facts.counters().items()}

    def answer(self, group: Group) -> list[Answer]:
        """Answers in the order of the questions; one that never came is an ``error``, and kept."""
        return self._loop.run(self._answers(group))

    def answer_all(self, groups: Iterable[Group]) -> Iterator[list[Answer]]:
        """As :meth:`answer` for each, in their order, with so many under way that no request of the bound is idle."""
        under_way: deque[Future[list[Answer]]] = deque()
        for group in groups:
            under_way.append(self._loop.start(self._answers(group)))
            if len(under_way) >= self._options.concurrency:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()

    async def _answers(self, group: Group) -> list[Answer]:
        answers: list[Answer] = []
        for ask in group.asks:
            first, rest = ask.questions[:1], ask.questions[1:]
            answers += [await self._one(group, ask, question) for question in first]
            answers += await asyncio.gather(*(self._one(group, ask, question) for question in rest))
        await self._facts.glance()
        return answers

    async def _one(self, group: Group, ask: Ask, question: Question) -> Answer:
        started = time.perf_counter()
        ids = group.tokens[: ask.context_end] + question.tail
        try:
            found, first_s = await self._proven(ids, group.max_tokens, ask.arm)
        except ServerError as error:
            self._counters["errors"] += 1
            return Answer(
                trial_id=question.trial_id,
                token_ids=[],
                text="",
                finish_reason="error",
                prompt_tokens=question.expected_prompt_tokens,
                cached_tokens=0,
                latency_s=time.perf_counter() - started,
                batch_id=question.trial_id,
                error=str(error),
                error_code=error.code,
            )
        return Answer(
            trial_id=question.trial_id,
            token_ids=self.tokenizer.encode(found.text) if found.text else [],
            text=found.text,
            finish_reason=found.finish_reason,
            prompt_tokens=found.prompt_tokens,
            cached_tokens=found.cached_tokens or 0,
            latency_s=time.perf_counter() - started,
            batch_id=question.trial_id,
            first_token_s=first_s,
        )

    async def _proven(self, ids: list[int], max_tokens: int, arm: str) -> Timed:
        """An answer that came the way that ``arm`` is there to test.  Raises ServerError where none did."""
        way = {"cold": self._cold, "warm": self._warm}.get(arm, self._counted)
        return await way(ids, max_tokens)

    async def _cold(self, ids: list[int], max_tokens: int) -> Timed:
        for _ in range(TRIES["cold"]):
            found, first_s = await self._counted(self._form.salted(ids), max_tokens)
            cached = found.cached_tokens or 0
            if cached <= self._form.salt_at:
                return Timed(found._replace(prompt_tokens=found.prompt_tokens - self._form.salt.tokens), first_s)
        raise ServerError("cached-in-cold", f"{cached} tokens came from a cache in {TRIES['cold']} tries of arm cold")

    async def _warm(self, ids: list[int], max_tokens: int) -> Timed:
        for _ in range(TRIES["warm"]):
            timed = await self._counted(ids, max_tokens)
            if timed.completion.cached_tokens:
                return timed
        raise ServerError(
            "no-hits",
            f"no cached tokens were counted in {TRIES['warm']} tries of arm warm; let the server cache prefixes and "
            "count them (vLLM: --enable-prefix-caching --enable-prompt-tokens-details)",
        )

    async def _counted(self, ids: list[int], max_tokens: int) -> Timed:
        timed = await self._ask(ids, max_tokens)
        self._counters["prompt_tokens"] += timed.completion.prompt_tokens
        self._counters["cached_tokens"] += timed.completion.cached_tokens or 0
        self._counters["decoded_tokens"] += timed.completion.completion_tokens
        return timed

    async def _ask(
        self, ids: list[int], max_tokens: int, model: str | None = None, deadline_s: float | None = None
    ) -> Timed:
        api, model, limit_s = self._options.api, model or self._model, deadline_s or self._options.deadline_s
        body = request_body(api, model, self._form(ids), max_tokens)
        if not self._options.stream:
            return Timed(await self._http.post(PATHS[api], body, lambda found: self._read(found, model), limit_s), 0.0)
        return await self._http.stream(
            PATHS[api],
            body | {"stream": True, "stream_options": {"include_usage": True}},
            lambda streamed: Timed(self._read(joined(streamed.events, model), model), streamed.first_s),
            lambda event: bool(said(event)),
            limit_s,
        )

    def _read(self, body: Any, model: str) -> Completion:
        found = read_completion(body, model)
        if self._names_answers and found.answer_id in self._known:
            raise PassingError("repeated", f"the answer {found.answer_id!r} was given to a question before")
        self._known.add(found.answer_id)
        return found

    async def _open(self) -> None:
        try:
            self._listed = await self._http.get("/models")
        except ServerError as error:
            raise CheckpointError(
                f"no model list at {self._http.base_url}/models ({error}); check --base-url, that the server runs, and "
                "the key"
            ) from error
        self._card = card_of(self._listed, self._model)
        first = await self._probe()
        second = (await self._ask(self._form.framed(PROBE), 1)).completion.answer_id
        # From here on one that comes twice was given to the wrong question.
        self._names_answers = None not in (first, second) and first != second
        self._any_name = await self._answers_to_any_name()
        await self._facts.read()

    async def _probe(self) -> str | None:
        """Find whether token ids are taken; returns what the server called its answer.

        Raises where one token of a prompt is not one token of the server's.
        """
        ids = self._form.framed(PROBE)
        errors = []
        for as_ids in (True, False) if self._options.api == "completions" else (False,):
            self._form.as_ids = as_ids
            try:
                found = (await self._ask(ids, 1)).completion
            except ServerError as error:
                errors.append(str(error))
                continue
            if found.prompt_tokens == len(ids):
                return found.answer_id
            errors.append(f"counted {found.prompt_tokens} tokens where the tokenizer has {len(ids)}")
        if any("tokens where" in error for error in errors):
            raise UnsupportedError(
                f"{self._http.base_url}: {errors[-1]}; name the served model's own as --tokenizer, and let the server "
                "add no tokens"
            )
        known = [] if self._card else names_of(self._listed)
        raise UnknownNameError(
            f"{self._http.base_url} does not answer as model {self._model!r} ({errors[-1]})"
            + (nearest(self._model, known) if known else "")
        )

    async def _answers_to_any_name(self) -> bool:
        """Whether the server answers as a model that nobody serves: then the name proves nothing."""
        limit_s = min(CONTROL_S, self._options.deadline_s)
        try:
            await asyncio.wait_for(self._ask(self._form.framed(PROBE), 1, self._model + CONTROL, limit_s), limit_s)
        except (ServerError, TimeoutError):
            return False
        return True
