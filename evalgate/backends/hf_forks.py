"""A context that transformers has taken in once, and copies of its cache for whatever is asked after it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Greedy(NamedTuple):
    """Tokens up to a stop token, with it, and whether all their logits were finite."""

    tokens: list[int]
    finite: bool


class Forks:
    """One growing context; asking does not change it, if the model's cache can be copied."""

    def __init__(self, model: Any) -> None:
        self._model = model
        known = inspect.signature(type(model).forward).parameters
        # Renamed in transformers 5, models moved over one by one.
        self._name = "cache" if "cache" in known else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        self._cache: Any = None
        self.tokens = 0
        """Of the context so far."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in more of the context."""
        if tokens:
            _, self._cache = self._forward(tokens, self._cache)
            self.tokens += len(tokens)

    def ask(self, tail: Sequence[int], max_tokens: int, stop_ids: frozenset[int]) -> tuple[Greedy, Tensor]:
        """Greedy tokens after ``tail``, and the logits ``[V]`` of the first."""
        logits, cache = self._forward(tail, copy.deepcopy(self._cache))
        first, tokens, finite = logits, [], True
        while True:
            finite = finite and bool(logits.isfinite().all())
            tokens.append(int(logits.argmax()))
            if tokens[-1] in stop_ids or len(tokens) == max_tokens:
                return Greedy(tokens, finite), first
            logits, cache = self._forward(tokens[-1:], cache)

    @torch.inference_mode()
    def _forward(self, tokens: Sequence[int], cache: Any) -> tuple[Tensor, Any]:
        ids = torch.tensor([list(tokens)], device=self._model.device)
        output = self._model(ids, use_cache=True, **{self._name: cache}, **self._last_only)
        return output.logits[0, -1].float(), cache_of(output)


def cache_of(output: Any) -> Any:
    """The cache in a model's output, by either name."""
    return output.cache if "cache" in output else output.past_key_values
