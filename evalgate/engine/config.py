"""The shape of a Kimi Linear model, read from its ``config.json``; every key is used, listed as harmless, or refused.

A checkpoint that says more than this engine does (a bounded gate, a rotary, another router) would load and answer
nonsense, so a key that is not known here is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from evalgate.errors import CheckpointError, UnsupportedError, nearest

LayerKind = Literal["kda", "mla"]

HARMLESS = frozenset({
    "architectures", "auto_map", "bos_token_id", "dtype", "head_dim", "initializer_range", "output_router_logits",
    "pad_token_id", "pretraining_tp", "qk_head_dim", "rope_theta", "torch_dtype", "transformers_version", "use_cache",
    "_name_or_path", "return_dict", "output_hidden_states", "output_attentions", "chunk_size_feed_forward", "id2label",
    "label2id", "is_encoder_decoder", "problem_type", "_attn_implementation_autoset", "attention_dropout",
})  # fmt: skip  # a list of names reads best in rows
"""Bookkeeping, training settings, and sizes that follow from others."""

ONLY_VALUE: dict[str, tuple[object, ...]] = {
    "model_type": ("kimi_linear",),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mla_use_nope": (True,),
    "moe_layer_freq": (1,),
    "moe_router_activation_func": ("sigmoid",),
    "num_nextn_predict_layers": (0,),
    "rope_scaling": (None,),
    "rope_parameters": (None,),
    "use_grouped_topk": (True,),
    "quantization_config": (None,),
}
"""Keys whose meaning is known, and the only values that this engine computes."""

ALIASES = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_local_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
"""Names that transformers uses -> names in published checkpoints."""

USED = frozenset({
    "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "num_shared_experts", "routed_scaling_factor", "kv_lora_rank",
    "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "qk_nope_head_dim", "num_expert_group", "topk_group",
    "num_experts_per_token", "moe_renormalize", "model_max_length", "rms_norm_eps", "eos_token_id",
    "tie_word_embeddings", "num_experts", "mlp_layer_types", "layer_types", "linear_head_dim", "linear_num_heads",
    "linear_conv_kernel_dim", "linear_attn_config", "first_k_dense_replace",
})  # fmt: skip  # as above

LINEAR_KEYS = frozenset({"full_attn_layers", "kda_layers", "head_dim", "num_heads", "short_conv_kernel_size"})
"""Keys of ``linear_attn_config``, where layers count from 1."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Sizes and rules of the mixture-of-experts layers."""

    experts: int
    per_token: int
    intermediate: int
    shared: int
    groups: int
    top_groups: int
    normalise: bool
    scaling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything that the forward pass needs to know; widths are in channels."""

    vocab: int
    hidden: int
    intermediate: int
    layers: tuple[LayerKind, ...]
    sparse: tuple[bool, ...]
    """Which layers have experts instead of one MLP."""
    rms_eps: float
    linear_heads: int
    linear_width: int
    conv_taps: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    """Width of the key part that all heads share; no rotary is applied to it."""
    value: int
    moe: MoeConfig | None
    window: int
    """Most tokens that a prompt and its answer may have."""
    eos: tuple[int, ...]
    tied: bool
    """Whether the output head may be the embedding."""

    @property
    def kda_layers(self) -> int:
        """Number of layers with a recurrent state."""
        return self.layers.count("kda")

    @property
    def mla_layers(self) -> int:
        """Number of layers with a token-linear cache."""
        return self.layers.count("mla")

    @property
    def latent_row(self) -> int:
        """Channels that one token leaves in the cache of one MLA layer."""
        return self.kv_rank + self.rope


def read_config(folder: Path) -> ModelConfig:
    """Read ``config.json`` of a checkpoint folder.

    Raises CheckpointError (missing, unparsable, a value that cannot be) or UnsupportedError (a model that this engine
    does not compute), each naming the key.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; expected a checkpoint folder with config.json and safetensors")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); restore it") from error
    if not isinstance(body, dict):
        raise CheckpointError(f"{path}: found {type(body).__name__}, expected an object of settings")
    return parse_config(body, str(path))


def parse_config(body: Mapping[str, object], where: str) -> ModelConfig:
    """Check every key of a parsed ``config.json``; raises as :func:`read_config` does."""
    _refuse_other_models(body, where)
    read = _Reader({ALIASES.get(key, key): value for key, value in body.items()}, where)
    linear = read.linear()
    layers = _layer_kinds(read, linear)
    sparse = _sparse_layers(read, len(layers))
    heads = read.positive("num_attention_heads")
    if read.optional("num_key_value_heads", int, None) not in {None, heads}:
        raise UnsupportedError(
            f"{where}: num_key_value_heads differs from num_attention_heads ({heads}): not supported"
        )
    return ModelConfig(
        vocab=read.positive("vocab_size"),
        hidden=read.positive("hidden_size"),
        intermediate=read.positive("intermediate_size"),
        layers=layers,
        sparse=sparse,
        rms_eps=read.optional("rms_norm_eps", float, 1e-5),
        linear_heads=linear.positive("num_heads"),
        linear_width=linear.positive("head_dim"),
        conv_taps=linear.positive("short_conv_kernel_size"),
        heads=heads,
        q_rank=read.optional("q_lora_rank", int, None),
        kv_rank=read.positive("kv_lora_rank"),
        nope=read.positive("qk_nope_head_dim"),
        rope=read.positive("qk_rope_head_dim"),
        value=read.positive("v_head_dim"),
        moe=_moe(read) if any(sparse) else None,
        window=read.positive("model_max_length"),
        eos=read.token_ids("eos_token_id"),
        tied=read.optional("tie_word_embeddings", bool, False),
    )


def _refuse_other_models(body: Mapping[str, object], where: str) -> None:
    for key, allowed in ONLY_VALUE.items():
        if key in body and body[key] not in allowed:
            raise UnsupportedError(
                f"{where}: {key} is {body[key]!r}; this engine computes only {allowed[0]!r} (backend hf may do others)"
            )
    if "model_type" not in body:
        raise CheckpointError(f"{where}: model_type is missing; expected 'kimi_linear'")
    known = HARMLESS | USED | ONLY_VALUE.keys() | ALIASES.keys()
    for key in body:
        if key not in known:
            raise UnsupportedError(
                f"{where}: unknown key {key!r}{nearest(key, sorted(known))}; the model may need something that this "
                "engine does not compute"
            )


def _layer_kinds(read: _Reader, linear: _Reader) -> tuple[LayerKind, ...]:
    count = read.positive("num_hidden_layers")
    if read.has("layer_types"):
        names: dict[str, LayerKind] = {"linear_attention": "kda", "full_attention": "mla"}
        found = read.names("layer_types", names, count)
        return tuple(names[name] for name in found)
    full, kda = (linear.required(key, list) for key in ("full_attn_layers", "kda_layers"))
    if sorted([*full, *kda]) != list(range(1, count + 1)):
        raise CheckpointError(
            f"{read.where}: linear_attn_config names layers {sorted([*full, *kda])}, expected each of 1..{count} once"
        )
    return tuple("mla" if layer in full else "kda" for layer in range(1, count + 1))


def _sparse_layers(read: _Reader, count: int) -> tuple[bool, ...]:
    if read.has("mlp_layer_types"):
        return tuple(name == "sparse" for name in read.names("mlp_layer_types", {"dense", "sparse"}, count))
    dense = read.optional("first_k_dense_replace", int, 1)
    return tuple(layer >= dense for layer in range(count))


def _moe(read: _Reader) -> MoeConfig:
    moe = MoeConfig(
        experts=read.positive("num_experts"),
        per_token=read.positive("num_experts_per_token"),
        intermediate=read.positive("moe_intermediate_size"),
        shared=read.positive("num_shared_experts"),
        groups=read.positive("num_expert_group"),
        top_groups=read.positive("topk_group"),
        normalise=read.optional("moe_renormalize", bool, True),
        scaling=read.required("routed_scaling_factor", float),
    )
    if moe.experts % moe.groups or moe.top_groups > moe.groups:
        raise CheckpointError(
            f"{read.where}: {moe.experts} experts, {moe.groups} groups, topk_group {moe.top_groups}: expected equal "
            "groups and topk_group at most their number"
        )
    if moe.per_token > moe.experts // moe.groups * moe.top_groups:
        raise CheckpointError(f"{read.where}: num_experts_per_token {moe.per_token} is more than the kept groups hold")
    return moe


class _Reader:
    """Typed access to one JSON object, with errors that name the file and the key."""

    def __init__(self, body: Mapping[str, object], where: str) -> None:
        self._body = body
        self.where = where

    def has(self, key: str) -> bool:
        return self._body.get(key) is not None

    def required(self, key: str, kind: type[T]) -> T:
        if not self.has(key):
            raise CheckpointError(f"{self.where}: {key} is missing")
        return self._typed(key, kind)

    def optional(self, key: str, kind: type[T], default: T | None) -> T:
        return self._typed(key, kind) if self.has(key) else default  # type: ignore[return-value]  # None is asked for as such

    def positive(self, key: str) -> int:
        value = self.required(key, int)
        if value < 1:
            raise CheckpointError(f"{self.where}: {key} is {value}, expected at least 1")
        return value

    def names(self, key: str, allowed: set[str] | dict[str, LayerKind], count: int) -> list[str]:
        found = self.required(key, list)
        if len(found) != count or not set(found) <= set(allowed):
            raise CheckpointError(f"{self.where}: {key} is {found}, expected {count} of {sorted(allowed)}")
        return found

    def token_ids(self, key: str) -> tuple[int, ...]:
        value = self._body.get(key)
        if value is None:
            return ()
        return tuple(value) if isinstance(value, list) else (self._typed(key, int),)

    def linear(self) -> _Reader:
        """``linear_attn_config``, or the same settings as transformers writes them."""
        if self.has("linear_attn_config"):
            section = self.required("linear_attn_config", dict)
            unknown = [key for key in section if key not in LINEAR_KEYS]
            if unknown:
                raise UnsupportedError(
                    f"{self.where}: unknown key linear_attn_config.{unknown[0]}{nearest(unknown[0], list(LINEAR_KEYS))}"
                )
            return _Reader(section, f"{self.where} linear_attn_config")
        flat = {
            "head_dim": "linear_head_dim",
            "num_heads": "linear_num_heads",
            "short_conv_kernel_size": "linear_conv_kernel_dim",
        }
        return _Reader({name: self._body.get(key) for name, key in flat.items()}, self.where)

    def _typed(self, key: str, kind: type[T]) -> T:
        value = self._body[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(f"{self.where}: {key} is {value!r}, expected {kind.__name__}")
        return value
