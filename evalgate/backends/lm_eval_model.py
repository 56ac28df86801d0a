"""The native engine as a model of lm-evaluation-harness: any of its tasks, under any profile.

Requests that share a context are scored on forks of one session, as the questions of a haystack are.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from evalgate.backends.native import NativeBackend
from evalgate.errors import EvalgateError, UnsupportedError

MAX_GEN_TOKENS = 256
"""Where a task does not say."""

Pair = tuple[tuple[str, str] | None, list[int], list[int]]


class EngineLM(TemplateLM):  # type: ignore[misc]  # lm-eval is read without types
    """Greedy; requests of the same settings are answered side by side."""

    def __init__(self, backend: NativeBackend, *, add_bos_token: bool = False) -> None:
        """Ask ``backend``, as it was opened."""
        super().__init__()
        self._native = backend
        self._tokenizer = backend.tokenizer
        self._bos = add_bos_token

    @property
    def max_length(self) -> int:
        """Most tokens of a request."""
        return self._native.window

    @property
    def eot_token_id(self) -> int:
        """What ends a text."""
        return min(self._tokenizer.eos_ids)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has nothing before it."""
        first = self._tokenizer.first_id
        return self.eot_token_id if first is None else first

    @property
    def tokenizer_name(self) -> str:
        """Names lm-eval's cache of requests."""
        return str(self._tokenizer.sha256)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The model's own, which lm-eval records."""
        return self._tokenizer.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text."""
        return str(self._tokenizer.render_messages(chat_history, answer=add_generation_prompt))

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids; BOS is added where it was asked for and the text does not begin with it."""
        ids = list(self._tokenizer.encode(string))
        wanted = self._bos if add_special_tokens is None else add_special_tokens
        return [self.prefix_token_id, *ids] if wanted and ids[:1] != [self.prefix_token_id] else ids

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002 - lm-eval's signature
        """Greedy answers, cut before the first stop text.  Raises UnsupportedError for sampling."""
        alike: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            alike.setdefault(json.dumps(request.args[1], sort_keys=True, default=str), []).append(i)
        texts: dict[int, str] = {}
        for indices in alike.values():
            contexts, settings = [requests[i].args[0] for i in indices], requests[indices[0]].args[1]
            texts |= dict(zip(indices, self._generated(contexts, settings), strict=True))
        return [texts[i] for i in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:  # noqa: ARG002
        """Log likelihood of whole texts, in windows of the model."""
        return [self._rolled(*request.args) for request in requests]

    def _loglikelihood_tokens(self, requests: Sequence[Pair], **_: Any) -> list[tuple[float, bool]]:
        """Pairs of context and continuation; those with one context are scored together."""
        found: dict[int, tuple[float, bool]] = {}
        order = sorted(range(len(requests)), key=lambda i: requests[i][1])
        for context, same in itertools.groupby(order, key=lambda i: requests[i][1]):
            indices = list(same)
            scores = self._native.score(context, [requests[i][2] for i in indices])
            found |= {i: (score.logprob, score.greedy) for i, score in zip(indices, scores, strict=True)}
        return [found[i] for i in range(len(requests))]

    def _rolled(self, text: str) -> float:
        windows = utils.get_rolling_token_windows(
            token_list=self.tok_encode(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length - 1,
            context_len=1,
        )
        pairs = [(None, *utils.make_disjoint_window(window)) for window in windows]
        return sum(logprob for logprob, _ in self._loglikelihood_tokens(pairs))

    def _generated(self, contexts: Sequence[str], settings: dict[str, Any]) -> list[str]:
        """Answers to requests of the same settings; prompts that begin alike come after one another."""
        if settings.get("do_sample") or settings.get("temperature"):
            raise UnsupportedError("model evalgate answers greedily; set do_sample=False and temperature=0")
        until = settings.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        prompts = [self.tok_encode(context) for context in contexts]
        order = sorted(range(len(prompts)), key=prompts.__getitem__)
        results = self._native.complete(
            [prompts[i] for i in order], int(settings.get("max_gen_toks", MAX_GEN_TOKENS)), self._tokenizer.eos_ids
        )
        texts = [""] * len(prompts)
        for i, result in zip(order, results, strict=True):
            if result.finish not in ("stop", "length"):
                raise EvalgateError("the engine gave no answer: the logits are not finite")
            text = self._tokenizer.decode(result.tokens)
            ends = [at for stop in stops if stop and (at := text.find(stop)) >= 0]
            texts[i] = text[: min(ends)] if ends else text
        return texts
