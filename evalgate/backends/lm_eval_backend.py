"""Any model of lm-evaluation-harness behind the port: whole prompts as text, greedy, through its ``generate_until``."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from evalgate.backends.base import Answer, Ask, Group, Question, check_arms
from evalgate.backends.http_client import ServerError
from evalgate.backends.load_options import LoadOptions
from evalgate.backends.models import find_model
from evalgate.backends.prompt_form import PromptForm
from evalgate.backends.settings import Sections, require_uncompressed
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.engine.weight_files import weights_digest
from evalgate.errors import CheckpointError, DoesNotFitError, UnsupportedError
from evalgate.records import EngineId, ModelId

WHERE = ("pretrained", "model", "base_url")
"""Arguments that tell one of lm-eval's models what to load; where none is given the folder is."""


class LmEvalBackend:
    """lm-eval cuts prompts that are too long in silence, so tokens are counted before it may."""

    def __init__(
        self, model: str, sections: Sections, options: LoadOptions, *, profile: str, max_tokens: int | None = None
    ) -> None:
        """Open lm-eval's model ``options.lm`` on ``model``.

        Raises UnknownNameError or CheckpointError (model), UnsupportedError (a profile that compresses, a kind of model
        that lm-eval does not know) or DoesNotFitError (``max_tokens``).
        """
        require_uncompressed(sections, profile, "lm-eval")
        folder = find_model(model)
        self.tokenizer = ModelTokenizer(folder)
        self._form = PromptForm(self.tokenizer, "completions")
        self._options = options
        given = options.lm_args if any(name in options.lm_args for name in WHERE) else {"pretrained": str(folder)}
        self._lm = _open(str(options.lm), given | options.lm_args)
        limit = getattr(self._lm, "max_length", None)
        self._limit = limit if isinstance(limit, int) and 0 < limit < 1 << 31 else None
        if max_tokens is not None and self._limit is not None and max_tokens > self._limit:
            raise DoesNotFitError(
                f"{max_tokens} tokens asked for, lm-eval's model takes {self._limit}; raise it (--lm-args "
                "max_length=...) or ask shorter lengths"
            )
        self._window = max_tokens or self._limit or 1 << 31
        self._identity = ModelId(
            name=model,
            architecture=f"lm-eval:{options.lm}",
            parameters=0,
            weights_sha256=weights_digest(folder),
            config_sha256=hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
            tokenizer_sha256=self.tokenizer.sha256,
        )
        self._counters: Counter[str] = Counter()

    @property
    def window(self) -> int:
        """Most tokens that a prompt and its answer may have."""
        return self._window

    @property
    def model_window(self) -> int | None:
        """As lm-eval's model has it; None: it does not say."""
        return self._limit

    def identity(self) -> ModelId:
        """Which weights and tokenizer lie in the folder; that lm-eval's model read no others is on its arguments."""
        return self._identity

    def arms(self) -> dict[str, str]:
        """Arms that this backend can do -> path taken."""
        return {"default": "cold", "cold": "cold"}

    def engine_id(self, longest: int, arms: Sequence[str]) -> EngineId:
        """What was asked of lm-eval; it shows no setting of a profile, and no bytes."""
        import lm_eval

        if longest > self._window:
            raise DoesNotFitError(f"{longest} tokens asked for, lm-eval's model takes {self._window}")
        return EngineId(
            backend="lm-eval",
            version=str(lm_eval.__version__),
            dtype="unknown",
            device=str(getattr(self._lm, "device", "unknown")),
            arm_paths=check_arms(arms, self.arms()),
            effective_profile={
                "lm_eval": {
                    "model": self._options.lm,
                    "arguments": dict(self._options.lm_args),
                    "counts_tokens": hasattr(self._lm, "tok_encode"),
                }
            },
            bytes_per_session={},
        )

    def counters(self) -> dict[str, int]:
        """Questions asked, and errors."""
        return dict(self._counters)

    def answer_all(self, groups: Iterable[Group]) -> Iterator[list[Answer]]:
        """One after the other."""
        return map(self.answer, groups)

    def answer(self, group: Group) -> list[Answer]:
        """Answers in the order of the questions; those of one length go to lm-eval together."""
        for ask in group.asks:
            longest = max((len(question.tail) for question in ask.questions), default=0)
            if ask.context_end + longest + group.max_tokens > self._window:
                raise DoesNotFitError(
                    f"{ask.context_end + longest + group.max_tokens} tokens asked for, at most {self._window} fit"
                )
        return [answer for ask in group.asks for answer in self._answers(group, ask)]

    def _answers(self, group: Group, ask: Ask) -> list[Answer]:
        started = time.perf_counter()
        context = group.tokens[: ask.context_end]
        prompts: dict[str, str] = {}
        for question in ask.questions:
            try:
                prompts[question.trial_id] = str(self._form(context + question.tail))
            except ServerError:
                self._counters["errors"] += 1
        # Of no ``until``: lm-eval ends at the tokenizer's own end, and a stop string of a suite is cut later.
        settings = {"until": [], "max_gen_toks": group.max_tokens, "do_sample": False, "temperature": 0.0}
        requests = [
            Instance("generate_until", doc={}, arguments=(prompt, dict(settings)), idx=index)
            for index, prompt in enumerate(prompts.values())
        ]
        said = dict(zip(prompts, self._lm.generate_until(requests, disable_tqdm=True), strict=True))
        took = time.perf_counter() - started
        self._counters["questions"] += len(prompts)
        return [
            self._tell(question, said.get(question.trial_id), self._tokens(prompts.get(question.trial_id)), group, took)
            for question in ask.questions
        ]

    def _tokens(self, prompt: str | None) -> int | None:
        """Tokens of ``prompt`` as lm-eval's model counts them; None: it does not say."""
        if prompt is None or not hasattr(self._lm, "tok_encode"):
            return None
        return len(self._lm.tok_encode(prompt))

    def _tell(self, question: Question, text: str | None, counted: int | None, group: Group, took: float) -> Answer:
        ids = self.tokenizer.encode(text) if text else []
        cut = len(ids) >= group.max_tokens
        return Answer(
            trial_id=question.trial_id,
            token_ids=ids,
            text=text or "",
            finish_reason="error" if text is None else "length" if cut else "stop",
            prompt_tokens=question.expected_prompt_tokens if counted is None else counted,
            cached_tokens=0,
            latency_s=took,
            batch_id=question.trial_id,
            error="the prompt as text would become other tokens" if text is None else None,
            error_code="other-tokens" if text is None else "",
        )


def _open(name: str, arguments: dict[str, str]) -> Any:
    try:
        kind = get_model(name)
    except ValueError as error:
        raise UnsupportedError(
            f"--lm {name!r}: lm-eval has no model of this name; look with `lm_eval --help`"
        ) from error
    try:
        return kind.create_from_arg_string(",".join(f"{key}={value}" for key, value in arguments.items()), {})
    except Exception as error:  # a kind of model may fail in any way, from a missing package to a bad argument
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"lm-eval's model {name} cannot be opened with {arguments} ({first})") from error
