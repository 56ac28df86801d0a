"""The shape of a Kimi Linear model, read from its ``config.json`` in either published form.

The forms differ in names, and in how they say which layer is which: a list of types, or numbers that count from 1.
Where a file says a thing in both ways, as transformers writes it for published weights, both must agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evalgate.engine.config_keys import ALIASES, refusal
from evalgate.engine.config_reader import Reader
from evalgate.errors import CheckpointError, UnsupportedError

LayerKind = Literal["kda", "mla"]


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
    if "model_type" not in body:
        raise CheckpointError(f"{where}: model_type is missing; expected 'kimi_linear'")
    refused = refusal(body)
    if refused is not None:
        raise UnsupportedError(f"{where}: {refused}; the native engine computes plain Kimi Linear (try --backend hf)")
    read = Reader({ALIASES.get(key, key): value for key, value in body.items()}, where)
    layers = _layer_kinds(read)
    linear = _linear_sizes(read)
    sparse = _sparse_layers(read, len(layers))
    heads = read.positive("num_attention_heads")
    groups = read.optional("num_key_value_heads", int, heads)
    if groups != heads:
        raise UnsupportedError(
            f"{where}: num_key_value_heads is {groups}, only the number of attention heads ({heads}) is computed"
        )
    return ModelConfig(
        vocab=read.positive("vocab_size"),
        hidden=read.positive("hidden_size"),
        intermediate=read.positive("intermediate_size"),
        layers=layers,
        sparse=sparse,
        # Required: transformers and the published code fall back on different values.
        rms_eps=read.required("rms_norm_eps", float),
        linear_heads=linear["num_heads"],
        linear_width=linear["head_dim"],
        conv_taps=linear["short_conv_kernel_size"],
        heads=heads,
        q_rank=read.positive("q_lora_rank") if read.has("q_lora_rank") else None,
        kv_rank=read.positive("kv_lora_rank"),
        nope=read.positive("qk_nope_head_dim"),
        rope=read.positive("qk_rope_head_dim"),
        value=read.positive("v_head_dim"),
        moe=_moe(read) if any(sparse) else None,
        window=read.positive("model_max_length"),
        eos=read.integers("eos_token_id"),
        tied=read.optional("tie_word_embeddings", bool, False),
    )


def _linear_sizes(read: Reader) -> dict[str, int]:
    """Sizes of the linear-attention layers by their names in ``linear_attn_config``."""
    flat = {
        "head_dim": "linear_head_dim",
        "num_heads": "linear_num_heads",
        "short_conv_kernel_size": "linear_conv_kernel_dim",
    }
    nested = read.section("linear_attn_config")
    if nested is None:
        return {name: read.positive(key) for name, key in flat.items()}
    sizes = {name: nested.positive(name) for name in flat}
    for name, key in flat.items():
        if read.has(key) and read.positive(key) != sizes[name]:
            raise CheckpointError(f"{nested.where}: {name} is {sizes[name]}, but {key} is {read.positive(key)}")
    return sizes


def _layer_kinds(read: Reader) -> tuple[LayerKind, ...]:
    count = read.positive("num_hidden_layers")
    nested = read.section("linear_attn_config")
    numbered = _numbered_kinds(nested, count) if nested is not None and nested.has("full_attn_layers") else None
    if not read.has("layer_types"):
        if numbered is None:
            # What transformers would assume for its own models is not what the published ones are.
            raise CheckpointError(f"{read.where}: layer_types is missing, and linear_attn_config.full_attn_layers too")
        return numbered
    names: dict[str, LayerKind] = {"linear_attention": "kda", "full_attention": "mla"}
    listed = tuple(names[name] for name in read.names("layer_types", set(names), count))
    if numbered not in {None, listed}:
        raise CheckpointError(f"{read.where}: layer_types is not what linear_attn_config says (counting from 1)")
    return listed


def _numbered_kinds(nested: Reader, count: int) -> tuple[LayerKind, ...]:
    full, kda = nested.integers("full_attn_layers"), nested.integers("kda_layers")
    if sorted([*full, *kda]) != list(range(1, count + 1)):
        raise CheckpointError(f"{nested.where}: names layers {sorted([*full, *kda])}, expected each of 1..{count} once")
    return tuple("mla" if layer in full else "kda" for layer in range(1, count + 1))


def _sparse_layers(read: Reader, count: int) -> tuple[bool, ...]:
    dense = read.optional("first_k_dense_replace", int, None)
    if not read.has("mlp_layer_types"):
        if dense is None:
            # Required: transformers falls back on 1, the published code on 0.
            raise CheckpointError(f"{read.where}: first_k_dense_replace is missing, and mlp_layer_types too")
        return tuple(layer >= dense for layer in range(count))
    listed = tuple(name == "sparse" for name in read.names("mlp_layer_types", {"dense", "sparse"}, count))
    if dense is not None and listed != tuple(layer >= dense for layer in range(count)):
        raise CheckpointError(f"{read.where}: mlp_layer_types is not what first_k_dense_replace {dense} says")
    return listed


def _moe(read: Reader) -> MoeConfig:
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
