"""The project's own engine behind the port: one prefill a haystack, a fork for every question."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from evalgate import __version__
from evalgate.backends.base import Answer, Ask, Group, Question, check_arms
from evalgate.backends.models import find_model
from evalgate.backends.paths import cold, odd_cuts, resumed, warm
from evalgate.backends.settings import Sections, parse_settings
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.engine.llm import DTYPES, GRID, LLM, DtypeName
from evalgate.engine.loader import load_checkpoint
from evalgate.engine.request import Request, Result
from evalgate.engine.session import Session
from evalgate.engine.tail_score import TailScore
from evalgate.engine.visibility import ContextSpan
from evalgate.errors import UnsupportedError
from evalgate.records import EngineId, ModelId

WAYS = {"warm": warm, "resumed": resumed}
"""How arms ask whole prompts; the others do so from nothing."""
SESSIONS = 16
"""Sessions that live at once: the haystack, and the questions that are answered together."""


class NativeBackend:
    """Questions of an ask fork from their haystack at its last grid position and are answered as one batch."""

    def __init__(
        self,
        model: str,
        sections: Sections,
        *,
        profile: str,
        dtype: str = "fp32",
        device: str = "cpu",
        max_tokens: int | None = None,
    ) -> None:
        """Load a model under a profile.

        Raises UnknownNameError or CheckpointError (model), UnsupportedError (settings) or DoesNotFitError
        (``max_tokens``).
        """
        precision = _precision(dtype)
        self._settings = parse_settings(sections, profile, dtype)
        folder = find_model(model)
        checkpoint = load_checkpoint(folder)
        self.tokenizer = ModelTokenizer(folder)
        self._dtype = dtype
        self._llm = LLM(
            checkpoint,
            dtype=precision,
            device=device,
            compression=self._settings.compression,
            max_tokens=max_tokens,
            max_sessions=SESSIONS,
            page=self._settings.page,
            prefill_chunk=self._settings.prefill_chunk,
            prefix=self._settings.prefix,
            snapshot_interval=self._settings.snapshot_interval,
        )
        self._identity = ModelId(
            name=model,
            architecture="KimiLinearForCausalLM",
            parameters=checkpoint.parameters,
            weights_sha256=checkpoint.weights_sha256,
            config_sha256=checkpoint.config_sha256,
            tokenizer_sha256=self.tokenizer.sha256,
        )
        self._counters: Counter[str] = Counter()

    @property
    def window(self) -> int:
        """Most tokens that a prompt and its answer may have."""
        return self._llm.window

    @property
    def model_window(self) -> int:
        """Most tokens that the model was made for."""
        return self._llm.config.window

    def identity(self) -> ModelId:
        """Which weights and tokenizer."""
        return self._identity

    def arms(self) -> dict[str, str]:
        """Arms that this backend can do -> path taken."""
        path = "fork" if self._settings.prefix else "cold"
        ways = {
            "default": path,
            "cold": "cold",
            "chunked": "odd-chunks",
            "resumed": "preempted-twice",
        }
        return ways | ({"warm": "stored-prefix"} if self._settings.prefix else {})

    def engine_id(self, longest: int, arms: Sequence[str]) -> EngineId:
        """Settings as read back from the live engine; bytes counted on a session of ``longest`` tokens."""
        paths = check_arms(arms, self.arms())
        measured = self._llm.measure(longest)
        return EngineId(
            backend="native",
            version=__version__,
            dtype=self._dtype,
            device=self._llm.device.name,
            arm_paths=paths,
            effective_profile=dict(self._llm.effective_config()),
            bytes_per_session={**measured._asdict(), "total": measured.total},
        )

    def counters(self) -> dict[str, int]:
        """Tokens prefilled for haystacks and for forks, decoded, taken over by forks; forks and errors.

        What the engine counted itself comes after it, under ``engine.``.
        """
        return dict(self._counters) | {f"engine.{name}": count for name, count in self._llm.counters().items()}

    def answer(self, group: Group) -> list[Answer]:
        """Answers in the order of the questions; raises DoesNotFitError before the first token."""
        for ask in group.asks:
            longest = max((len(question.tail) for question in ask.questions), default=0)
            self._llm.check_fits(ask.context_end + longest + group.max_tokens)
        ends = [ask.context_end for ask in group.asks]
        assert ends == sorted(ends), f"asks come by ascending context end, found {ends}"
        answers: list[Answer] = []
        parent = self._llm.start()
        try:
            for ask in group.asks:
                questions, most = ask.questions, SESSIONS - 1
                batches = [questions[first : first + most] for first in range(0, len(questions), most)]
                if ask.arm != "default" or not self._settings.prefix:
                    answers += [answer for batch in batches for answer in self._answer_alone(group, ask, batch)]
                    continue
                self._extend(parent, group.tokens[parent.tokens : _grid(ask.context_end)])
                answers += [answer for batch in batches for answer in self._answer(parent, group, ask, batch)]
        finally:
            self._llm.release(parent)
        return answers

    def answer_all(self, groups: Iterable[Group]) -> Iterator[list[Answer]]:
        """One after the other."""
        return map(self.answer, groups)

    def score(self, context: list[int], continuations: list[list[int]]) -> list[TailScore]:
        """How likely each continuation is after ``context``, which is taken in once.

        The profile acts where a question of a haystack would go on: at the last grid position before the context's end.
        Raises DoesNotFitError.
        """
        start = _grid(len(context) - 1)
        self._llm.check_fits(len(context) + max(map(len, continuations)))
        parent = self._llm.start()
        try:
            self._extend(parent, context[:start])
            tails = [context[start:] + continuation for continuation in continuations]
            return self._llm.score_tails(parent, tails, [len(continuation) for continuation in continuations])
        finally:
            self._llm.release(parent)

    def complete(self, prompts: Sequence[list[int]], max_tokens: int, stop_ids: frozenset[int]) -> list[Result]:
        """Greedy answers to whole prompts, side by side; what prompts begin with alike is taken in once and stored.

        The profile acts where a question of a haystack would go on.  Raises DoesNotFitError before the first token.
        """
        for prompt in prompts:
            self._llm.check_fits(len(prompt) + max_tokens)
        requests = [
            Request(tokens=prompt, max_tokens=max_tokens, stop_ids=stop_ids, context=ContextSpan(0, len(prompt) - 1))
            for prompt in prompts
        ]
        # The first goes alone, so that the others find its prefix.
        results = self._llm.run(requests[:1])
        for first in range(1, len(requests), SESSIONS):
            results += self._llm.run(requests[first : first + SESSIONS])
        return results

    def _answer_alone(self, group: Group, ask: Ask, batch: Sequence[Question]) -> list[Answer]:
        """Questions as whole prompts, by the way that the arm names."""
        started = time.perf_counter()
        context = ContextSpan(group.context_start, ask.context_end)
        requests = [
            Request(
                tokens=group.tokens[: ask.context_end] + question.tail,
                max_tokens=group.max_tokens,
                stop_ids=group.stop_ids,
                context=context,
                reuse=False,
                cuts=odd_cuts(ask.context_end, question.expected_prompt_tokens) if ask.arm == "chunked" else (),
            )
            for question in batch
        ]
        results = WAYS.get(ask.arm, cold)(self._llm, requests)
        took = time.perf_counter() - started
        self._counters["prefilled_tokens"] += sum(result.prompt_tokens - result.cached_tokens for result in results)
        self._counters["decoded_tokens"] += sum(len(result.tokens) for result in results)
        return [
            self._tell(question, result, ask, result.cached_tokens, took, batch[0].trial_id)
            for question, result in zip(batch, results, strict=True)
        ]

    def _extend(self, parent: Session, tokens: Sequence[int]) -> None:
        self._llm.extend(parent, tokens)
        self._counters["prefilled_tokens"] += len(tokens)

    def _answer(self, parent: Session, group: Group, ask: Ask, batch: Sequence[Question]) -> list[Answer]:
        started = time.perf_counter()
        context = ContextSpan(group.context_start, ask.context_end)
        rest = group.tokens[parent.tokens : ask.context_end]
        tails = [rest + question.tail for question in batch]
        forks = self._llm.fork(parent, tails, context)
        try:
            generations = self._llm.generate(forks, group.max_tokens, group.stop_ids)
        finally:
            self._llm.release(*forks)
        took = time.perf_counter() - started
        self._counters["forks"] += len(forks)
        self._counters["fork_tokens"] += sum(map(len, tails))
        self._counters["reused_tokens"] += parent.tokens * len(forks)
        self._counters["decoded_tokens"] += sum(len(generation.tokens) for generation in generations)
        return [
            self._tell(question, generation, ask, parent.tokens, took, batch[0].trial_id)
            for question, generation in zip(batch, generations, strict=True)
        ]

    def _tell(
        self, question: Question, generation: Result, ask: Ask, cached: int, took: float, batch_id: str
    ) -> Answer:
        prompt = ask.context_end + len(question.tail)
        error = None if generation.finish in {"stop", "length"} else "the logits are not finite"
        error = error or _unproven(ask.arm, generation)
        if prompt != question.expected_prompt_tokens:
            error = f"the prompt has {prompt} tokens, expected {question.expected_prompt_tokens}"
        self._counters["errors"] += error is not None
        return Answer(
            trial_id=question.trial_id,
            token_ids=generation.tokens,
            text=self.tokenizer.decode(generation.tokens),
            finish_reason="error" if error else "stop" if generation.finish == "stop" else "length",
            prompt_tokens=prompt,
            cached_tokens=cached,
            latency_s=took,
            batch_id=batch_id,
            error=error,
        )


def _unproven(arm: str, result: Result) -> str | None:
    """What is wrong when an arm did not go the way that it is there to test; such an answer counts for nothing."""
    if arm == "warm" and not result.cached_tokens:
        return "no stored prefix was found for it"
    if arm == "resumed" and not result.preemptions:
        return "it was done before it could be preempted"
    return None


def _grid(tokens: int) -> int:
    """g: the last grid position at or before the end of a context."""
    return tokens // GRID * GRID


def _precision(dtype: str) -> DtypeName:
    for known in DTYPES:
        if dtype == known:
            return known
    raise UnsupportedError(f"dtype {dtype!r} is not one that the native engine computes in; known: {', '.join(DTYPES)}")
