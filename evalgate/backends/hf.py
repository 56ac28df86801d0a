"""transformers behind the port: no forks, every question as one full prompt. The oracle, not the fast path."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from evalgate.backends.base import Answer, Ask, Group, Question, check_arms
from evalgate.backends.models import find_model
from evalgate.backends.settings import Sections, require_uncompressed
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.engine.weight_files import weights_digest
from evalgate.errors import CheckpointError, DoesNotFitError, UnsupportedError
from evalgate.records import EngineId, ModelId

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PROBE_TOKENS = 256
"""Tokens of the session whose cache is measured; what grows with tokens is scaled from there."""


class HfBackend:
    """``AutoModelForCausalLM`` with greedy ``generate``; only profile ``full``."""

    def __init__(
        self, model: str, sections: Sections, *, profile: str, dtype: str = "fp32", max_tokens: int | None = None
    ) -> None:
        """Load a model.

        Raises UnknownNameError or CheckpointError (model), UnsupportedError (a profile that compresses, a dtype) or
        DoesNotFitError (``max_tokens``).
        """
        require_uncompressed(sections, profile, "hf")
        if dtype not in DTYPES:
            raise UnsupportedError(f"dtype {dtype!r} is not one that backend hf does; known: {', '.join(DTYPES)}")
        folder = find_model(model)
        self.tokenizer = ModelTokenizer(folder)
        self._dtype = dtype
        self._model = _load(str(folder), DTYPES[dtype])
        limit = getattr(self._model.config, "max_position_embeddings", None)
        if max_tokens is not None and limit is not None and max_tokens > limit:
            raise DoesNotFitError(f"{max_tokens} tokens asked for, at most {limit} fit (the model's window)")
        self._window = max_tokens or limit or 2**31
        self._limit: int | None = limit
        self._identity = ModelId(
            name=model,
            architecture=type(self._model).__name__,
            # By address: tied weights are one, and the router's bias is a buffer that is loaded all the same.
            parameters=sum({x.data_ptr(): x.numel() for x in self._model.state_dict().values()}.values()),
            weights_sha256=weights_digest(folder),
            config_sha256=hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
            tokenizer_sha256=self.tokenizer.sha256,
        )
        self._counters: Counter[str] = Counter()

    @property
    def window(self) -> int:
        """Most tokens that a prompt and its answer may have."""
        return int(self._window)

    @property
    def model_window(self) -> int | None:
        """Most tokens that the model was made for; None where its config does not say."""
        return self._limit

    def identity(self) -> ModelId:
        """Which weights and tokenizer."""
        return self._identity

    def arms(self) -> dict[str, str]:
        """Arms that this backend can do -> path taken."""
        return {"default": "cold", "cold": "cold"}

    def engine_id(self, longest: int, arms: Sequence[str]) -> EngineId:
        """Nothing is compressed; bytes are counted on a real cache and scaled to ``longest`` tokens."""
        import transformers

        paths = check_arms(arms, self.arms())
        self._check_fits(longest)
        return EngineId(
            backend="hf",
            version=transformers.__version__,
            dtype=self._dtype,
            arm_paths=paths,
            effective_profile={
                "state": {"dtype": "fp32", "scales": None, "rank": None, "codec_every": None, "error_feedback": False},
                "snapshot": {"dtype": "fp32"},
                "kv": {"dtype": self._dtype, "keep": 1.0, "window": None},
            },
            bytes_per_session=self._measure(longest),
        )

    def counters(self) -> dict[str, int]:
        """Tokens prefilled and decoded, and errors."""
        return dict(self._counters)

    def answer(self, group: Group) -> list[Answer]:
        """Answers in the order of the questions; raises DoesNotFitError before the first token."""
        for ask in group.asks:
            for question in ask.questions:
                self._check_fits(ask.context_end + len(question.tail) + group.max_tokens)
        return [self._answer(group, ask, question) for ask in group.asks for question in ask.questions]

    def answer_all(self, groups: Iterable[Group]) -> Iterator[list[Answer]]:
        """One after the other."""
        return map(self.answer, groups)

    def _check_fits(self, tokens: int) -> None:
        if tokens > self._window:
            raise DoesNotFitError(f"{tokens} tokens asked for, at most {self._window} fit (the model's window)")

    @torch.inference_mode()
    def _answer(self, group: Group, ask: Ask, question: Question) -> Answer:
        started = time.perf_counter()
        prompt = torch.tensor([group.tokens[: ask.context_end] + question.tail])
        result = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=group.max_tokens,
            do_sample=False,
            eos_token_id=sorted(group.stop_ids) or None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = result.sequences[0, prompt.shape[1] :].tolist()
        stopped = bool(tokens) and tokens[-1] in group.stop_ids
        error = None
        if not all(bool(logits.isfinite().all()) for logits in result.logits):
            error = "the logits are not finite"
        if prompt.shape[1] != question.expected_prompt_tokens:
            error = f"the prompt has {prompt.shape[1]} tokens, expected {question.expected_prompt_tokens}"
        tokens = tokens[:-1] if stopped else tokens
        self._counters["prefilled_tokens"] += prompt.shape[1]
        self._counters["decoded_tokens"] += len(tokens)
        self._counters["errors"] += error is not None
        return Answer(
            trial_id=question.trial_id,
            token_ids=tokens,
            text=self.tokenizer.decode(tokens),
            finish_reason="error" if error else "stop" if stopped else "length",
            prompt_tokens=prompt.shape[1],
            cached_tokens=0,
            latency_s=time.perf_counter() - started,
            batch_id=question.trial_id,
            error=error,
        )

    @torch.inference_mode()
    def _measure(self, longest: int) -> dict[str, int]:
        count = min(longest, PROBE_TOKENS)
        output = self._model(torch.zeros(1, count, dtype=torch.int64), use_cache=True)
        # Renamed in transformers 5: models moved over one by one.
        cache = output.cache if "cache" in output else output.past_key_values
        sizes = Counter({"state": 0, "conv": 0, "kv": 0})
        for layer in cache.layers:
            sizes["kv"] += _nbytes([getattr(layer, "keys", None), getattr(layer, "values", None)])
            sizes["conv"] += _nbytes(getattr(layer, "conv_states", None))
            sizes["state"] += _nbytes(getattr(layer, "recurrent_states", None))
        sizes["kv"] = sizes["kv"] * longest // count
        return {**sizes, "total": sum(sizes.values())}


def _load(folder: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers raises whatever the file made it raise
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{folder}: transformers cannot load this checkpoint ({line})") from error
    # transformers fills what is missing with random numbers and says so in passing.
    for fault in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if report[fault]:
            raise CheckpointError(f"{folder}: {fault.replace('_', ' ')}: {sorted(map(str, report[fault]))[:3]}")
    model.generation_config = GenerationConfig()
    return model.eval()


def _nbytes(tensors: Any) -> int:
    """Bytes of the tensors in a list or a mapping; None counts nothing."""
    if tensors is None:
        return 0
    values = tensors.values() if isinstance(tensors, dict) else tensors
    return sum(x.nbytes for x in values if isinstance(x, torch.Tensor))
