"""Servers that speak the OpenAI completions interface: vLLM, SGLang, TensorRT-LLM, llama.cpp, transformers serve.

Prompts go as token ids where the server takes them, else as text that is checked to become the same ids.  Questions of
one context go after its first has been answered, so that the server's own prefix cache can hold the context.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from evalgate import __version__
from evalgate.backends.base import Answer, Ask, Group, Question, check_arms
from evalgate.backends.completion import read_completion
from evalgate.backends.http_client import HttpClient, ServerError
from evalgate.backends.models import find_model
from evalgate.backends.server_options import ServerOptions
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.errors import CheckpointError, DoesNotFitError, UnknownNameError, UnsupportedError, nearest
from evalgate.records import EngineId, ModelId

CONTROL = "-evalgate-no-such-model"
"""Added to the served name: a server that answers to it answers to any name."""
CONTROL_S = 5.0
"""Seconds after which a server that does not answer to it counts as one that will not."""
UNKNOWN_WINDOW = 1 << 31
T = TypeVar("T")


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
        self._card = self._run(self._find_card)
        limit = self._card.get("max_model_len")
        self._limit = limit if isinstance(limit, int) else None
        if max_tokens is not None and self._limit is not None and max_tokens > self._limit:
            raise DoesNotFitError(f"{max_tokens} tokens asked for, the server takes {self._limit}; ask shorter lengths")
        self._window = max_tokens or self._limit or UNKNOWN_WINDOW
        self._takes_ids = self._run(self._probe)
        self._any_name = self._run(self._answers_to_any_name, min(CONTROL_S, options.deadline_s))

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
        card = {name: value for name, value in self._card.items() if name != "created"}
        told: dict[str, object] = {"model": self._model, "card": card}
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
        return {"default": "prefix-order"}

    def engine_id(self, longest: int, arms: Sequence[str]) -> EngineId:
        """What is known of the server; it shows no setting of a profile, and no bytes."""
        if longest > self._window:
            raise DoesNotFitError(f"{longest} tokens asked for, the server takes {self._window}")
        known: dict[str, object] = {
            "base_url": self._options.base_url,
            "prompt": "token ids" if self._takes_ids else "text",
            "answers_to_any_name": self._any_name,
            **{name: self._card[name] for name in ("max_model_len", "owned_by", "root") if name in self._card},
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
        """Requests, retries, errors and tokens."""
        return dict(self._counters)

    def answer(self, group: Group) -> list[Answer]:
        """Answers in the order of the questions; one that never came is an ``error``, and kept."""
        return self._run(lambda: self._answers(group))

    async def _answers(self, group: Group) -> list[Answer]:
        answers: list[Answer] = []
        for ask in group.asks:
            first, rest = ask.questions[:1], ask.questions[1:]
            answers += [await self._one(group, ask, question) for question in first]
            answers += await asyncio.gather(*(self._one(group, ask, question) for question in rest))
        return answers

    async def _one(self, group: Group, ask: Ask, question: Question) -> Answer:
        started = time.perf_counter()
        ids = group.tokens[: ask.context_end] + question.tail
        try:
            found = read_completion(await self._complete(ids, group.max_tokens), self._model)
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
            )
        self._counters["prompt_tokens"] += found.prompt_tokens
        self._counters["cached_tokens"] += found.cached_tokens or 0
        self._counters["decoded_tokens"] += found.completion_tokens
        return Answer(
            trial_id=question.trial_id,
            token_ids=self.tokenizer.encode(found.text) if found.text else [],
            text=found.text,
            finish_reason=found.finish_reason,
            prompt_tokens=found.prompt_tokens,
            cached_tokens=found.cached_tokens or 0,
            latency_s=time.perf_counter() - started,
            batch_id=question.trial_id,
        )

    async def _complete(self, ids: Sequence[int], max_tokens: int, model: str | None = None) -> Any:
        prompt: Any = list(ids)
        if not self._takes_ids:
            prompt = self.tokenizer.decode_whole(ids)
            if self.tokenizer.encode(prompt) != list(ids):
                raise ServerError("the prompt as text would become other tokens")
        body = {"model": model or self._model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return await self._http.post("/completions", body)

    async def _find_card(self) -> dict[str, Any]:
        """What the server publishes of the model; empty where it publishes nothing."""
        try:
            listed = await self._http.get("/models")
        except ServerError as error:
            raise CheckpointError(
                f"no model list at {self._http.base_url}/models ({error}); check --base-url, that the server runs, and "
                "the key"
            ) from error
        cards = listed.get("data") if isinstance(listed, dict) else None
        known = {str(card.get("id")): card for card in cards or [] if isinstance(card, dict)}
        return dict(known.get(self._model, {}))

    async def _probe(self) -> bool:
        """Whether token ids are taken.  Raises where one token of a prompt is not one token of the server's."""
        ids = self.tokenizer.encode("The context.")
        errors = []
        for self._takes_ids in (True, False):
            try:
                found = read_completion(await self._complete(ids, 1), self._model)
            except ServerError as error:
                errors.append(str(error))
                continue
            if found.prompt_tokens == len(ids):
                return self._takes_ids
            errors.append(f"counted {found.prompt_tokens} tokens where the tokenizer has {len(ids)}")
        if any("tokens where" in error for error in errors):
            raise UnsupportedError(
                f"{self._http.base_url}: {errors[-1]}; name the served model's own as --tokenizer, and let the server "
                "add no tokens"
            )
        known = [] if self._card else await self._names()
        raise UnknownNameError(
            f"{self._http.base_url} does not answer as model {self._model!r} ({errors[-1]})"
            + (nearest(self._model, known) if known else "")
        )

    async def _names(self) -> list[str]:
        listed = await self._http.get("/models")
        return [str(card.get("id")) for card in listed.get("data") or []]

    async def _answers_to_any_name(self) -> bool:
        """Whether the server answers as a model that nobody serves: then the name proves nothing."""
        wrong = self._model + CONTROL
        try:
            read_completion(await self._complete(self.tokenizer.encode("The context."), 1, wrong), wrong)
        except ServerError:
            return False
        return True

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]], deadline_s: float | None = None) -> T:
        """Run ``work`` with a client of its own, whose connections end with it."""

        async def whole() -> T:
            async with self._client(deadline_s or self._options.deadline_s) as self._http:
                return await work()

        return asyncio.run(whole())

    def _client(self, deadline_s: float) -> HttpClient:
        asked = self._options
        return HttpClient(
            asked.base_url,
            headers=asked.headers,
            key=asked.key,
            concurrency=asked.concurrency,
            deadline_s=deadline_s,
            counters=self._counters,
        )
