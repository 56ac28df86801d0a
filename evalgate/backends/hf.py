"""transformers behind the port: any causal model, the oracle of the fast path.

Questions of a context are asked after copies of its cache where a probe at the start finds that this gives what whole
prompts give, else as whole prompts; the way taken is in the manifest.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from evalgate.backends.base import Answer, Ask, Group, Question, check_arms
from evalgate.backends.hf_forks import Forks, Greedy, cache_of
from evalgate.backends.models import find_model
from evalgate.backends.settings import Sections, require_uncompressed
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.engine.weight_files import weights_digest
from evalgate.errors import CheckpointError, DoesNotFitError, UnsupportedError
from evalgate.records import EngineId, ModelId

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PROBE_TOKENS = 256
"""Tokens of the session whose cache is measured; what grows with tokens is scaled from there."""
PROBE_CUTS = (64, 150, 151)
"""Tokens after which the probe forks: on and off every grid, and one after another as a haystack's lengths are."""
PROBE_ANSWER = 6
EXACT = {"fp32": 1e-3, "bf16": 0.1}
"""Most that a first token's log probabilities may differ between a fork and a whole prompt, by dtype: rounding."""


class HfBackend:
    """``AutoModelForCausalLM``, greedy; only profile ``full``."""

    def __init__(
        self,
        model: str,
        sections: Sections,
        *,
        profile: str,
        dtype: str = "fp32",
        device: str = "cpu",
        max_tokens: int | None = None,
        load: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Load a model; ``load`` goes to ``from_pretrained`` as it is (``attn_implementation``, ``device_map``).

        Raises UnknownNameError or CheckpointError (model), UnsupportedError (a profile that compresses, a dtype) or
        DoesNotFitError (``max_tokens``).
        """
        require_uncompressed(sections, profile, "hf")
        if dtype not in DTYPES:
            raise UnsupportedError(f"dtype {dtype!r} is not one that backend hf does; known: {', '.join(DTYPES)}")
        folder = find_model(model)
        self.tokenizer = ModelTokenizer(folder)
        self._dtype, self._device = dtype, device
        self._load = dict(load)
        self._model = _load(str(folder), DTYPES[dtype], self._load)
        if "device_map" not in self._load:
            self._model.to(device)
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
        self._off_by = self._probe()

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
        return {"default": "fork" if self._forks else "cold", "cold": "cold"}

    def engine_id(self, longest: int, arms: Sequence[str]) -> EngineId:
        """Nothing is compressed; bytes are counted on a real cache and scaled to ``longest`` tokens."""
        import transformers

        paths = check_arms(arms, self.arms())
        self._check_fits(longest)
        return EngineId(
            backend="hf",
            version=transformers.__version__,
            dtype=self._dtype,
            device=self._device,
            arm_paths=paths,
            effective_profile={
                "state": {"dtype": "fp32", "scales": None, "rank": None, "codec_every": None, "error_feedback": False},
                "snapshot": {"dtype": "fp32"},
                "kv": {"dtype": self._dtype, "keep": 1.0, "window": None},
                "forks": {"exact": self._forks, "allowed_difference": EXACT[self._dtype]},
                "transformers": {"attention": self._model.config._attn_implementation, **self._load},  # noqa: SLF001 - published nowhere else
            },
            bytes_per_session=self._measure(longest),
        )

    def counters(self) -> dict[str, int]:
        """Tokens prefilled, reused by forks and decoded, forks, and errors."""
        return dict(self._counters)

    def answer(self, group: Group) -> list[Answer]:
        """Answers in the order of the questions; raises DoesNotFitError before the first token."""
        for ask in group.asks:
            for question in ask.questions:
                self._check_fits(ask.context_end + len(question.tail) + group.max_tokens)
        context, answers = Forks(self._model), []
        for ask in group.asks:
            if not self._forks or ask.arm != "default":
                answers += [self._answer(group, ask, question, None) for question in ask.questions]
                continue
            fresh = group.tokens[context.tokens : ask.context_end]
            context.extend(fresh)
            self._counters["prefilled_tokens"] += len(fresh)
            answers += [self._answer(group, ask, question, context) for question in ask.questions]
        return answers

    def answer_all(self, groups: Iterable[Group]) -> Iterator[list[Answer]]:
        """One after the other."""
        return map(self.answer, groups)

    def _check_fits(self, tokens: int) -> None:
        if tokens > self._window:
            raise DoesNotFitError(f"{tokens} tokens asked for, at most {self._window} fit (the model's window)")

    @property
    def _forks(self) -> bool:
        return self._off_by is not None and self._off_by <= EXACT[self._dtype]

    def _answer(self, group: Group, ask: Ask, question: Question, context: Forks | None) -> Answer:
        """``context`` is the context taken in already; None: the whole prompt is asked."""
        started = time.perf_counter()
        prompt = ask.context_end + len(question.tail)
        reused = 0 if context is None else context.tokens
        if context is None:
            said, _ = self._whole(group.tokens[: ask.context_end] + question.tail, group.max_tokens, group.stop_ids)
        else:
            said, _ = context.ask(question.tail, group.max_tokens, group.stop_ids)
            self._counters["forks"] += 1
        error = None if said.finite else "the logits are not finite"
        if prompt != question.expected_prompt_tokens:
            error = f"the prompt has {prompt} tokens, expected {question.expected_prompt_tokens}"
        stopped = bool(said.tokens) and said.tokens[-1] in group.stop_ids
        tokens = said.tokens[:-1] if stopped else said.tokens
        self._counters["reused_tokens"] += reused
        self._counters["prefilled_tokens"] += prompt - reused
        self._counters["decoded_tokens"] += len(tokens)
        self._counters["errors"] += error is not None
        return Answer(
            trial_id=question.trial_id,
            token_ids=tokens,
            text=self.tokenizer.decode(tokens),
            finish_reason="error" if error else "stop" if stopped else "length",
            prompt_tokens=prompt,
            cached_tokens=reused,
            latency_s=time.perf_counter() - started,
            batch_id=question.trial_id,
            error=error,
        )

    @torch.inference_mode()
    def _whole(self, tokens: list[int], max_tokens: int, stop_ids: frozenset[int]) -> tuple[Greedy, Tensor]:
        """Greedy tokens after a whole prompt by transformers' own ``generate``, and the logits ``[V]`` of the first."""
        prompt = torch.tensor([tokens], device=self._model.device)
        result = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=sorted(stop_ids) or None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        finite = all(bool(logits.isfinite().all()) for logits in result.logits)
        return Greedy(result.sequences[0, prompt.shape[1] :].tolist(), finite), result.logits[0][0].float()

    def _probe(self) -> float | None:
        """Most that forks of a made-up context differ from whole prompts; None: forking fails, or says other tokens."""
        size = self._model.get_input_embeddings().num_embeddings
        tokens = [(7 * i * i + 31 * i) % min(size, 1000) for i in range(max(PROBE_CUTS) + 9)]
        context, off_by = Forks(self._model), 0.0
        try:
            for cut in PROBE_CUTS:
                context.extend(tokens[context.tokens : cut])
                # The first once more: what was asked in between must have left nothing behind.
                for tail in (tokens[cut:], tokens[-3:], tokens[cut:]):
                    said, logits = context.ask(tail, PROBE_ANSWER, frozenset())
                    other, wanted = self._whole(tokens[:cut] + tail, PROBE_ANSWER, frozenset())
                    if said.tokens != other.tokens and self._dtype == "fp32":
                        return None
                    off_by = max(off_by, float((logits.log_softmax(-1) - wanted.log_softmax(-1)).abs().max()))
        except Exception:  # noqa: BLE001 - a cache that cannot be copied or gone on from fails in ways of its own
            return None
        return off_by

    @torch.inference_mode()
    def _measure(self, longest: int) -> dict[str, int]:
        count = min(longest, PROBE_TOKENS)
        output = self._model(torch.zeros(1, count, dtype=torch.int64, device=self._model.device), use_cache=True)
        cache = cache_of(output)
        sizes = Counter({"state": 0, "conv": 0, "kv": 0})
        for layer in cache.layers:
            sizes["kv"] += _nbytes([getattr(layer, "keys", None), getattr(layer, "values", None)])
            sizes["conv"] += _nbytes(getattr(layer, "conv_states", None))
            sizes["state"] += _nbytes(getattr(layer, "recurrent_states", None))
        sizes["kv"] = sizes["kv"] * longest // count
        return {**sizes, "total": sum(sizes.values())}


def _load(folder: str, dtype: torch.dtype, how: Mapping[str, str]) -> Any:
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True, **how
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
