"""config.json: both published forms are read, and whatever the engine does not compute is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalgate.engine.config import parse_config, read_config
from evalgate.errors import CheckpointError, UnsupportedError

PUBLISHED: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_kimi.KimiLinearForCausalLM"},
    "bos_token_id": 163584,
    "dtype": "bfloat16",
    "eos_token_id": 163586,
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8],
        "head_dim": 128,
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "model_type": "kimi_linear",
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 8,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "pad_token_id": 163839,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "transformers_version": "4.57.1",
    "use_cache": True,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
}
"""Shaped like the configuration that comes with the published 48B weights, with fewer layers."""


def changed(**changes: Any) -> dict[str, Any]:
    """The published form with some keys changed; ``...`` takes a key away."""
    return {key: value for key, value in (PUBLISHED | changes).items() if value is not ...}


def test_published_form_counts_layers_from_one() -> None:
    """``linear_attn_config`` names layers 4 and 8 of 8: the fourth and the last attend to everything."""
    config = parse_config(PUBLISHED, "config.json")
    assert config.layers == ("kda", "kda", "kda", "mla") * 2
    assert config.sparse == (False,) + (True,) * 7
    assert (config.linear_heads, config.linear_width, config.conv_taps) == (32, 128, 4)
    assert config.moe is not None
    assert (config.moe.experts, config.moe.per_token, config.moe.scaling) == (256, 8, 2.446)
    assert config.window == 1_048_576
    assert config.eos == (163586,)


def test_form_that_transformers_saves_is_read(tiny_models: dict[str, Path]) -> None:
    """``layer_types``, ``mlp_layer_types`` and flat linear sizes mean the same."""
    config = read_config(tiny_models["experts"])
    assert config.layers == ("kda", "kda", "kda", "mla")
    assert config.sparse == (False, True, True, False)
    assert config.q_rank == 24
    assert config.moe is not None
    assert (config.moe.groups, config.moe.top_groups) == (2, 1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"gate_lower_bound": -5.0}, "gate_lower_bound"),
        ({"attn_res_block": 12}, "attn_res_block"),
        (
            {"linear_attn_config": PUBLISHED["linear_attn_config"] | {"lower_bound": -5}},
            "linear_attn_config.lower_bound",
        ),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"attention_bias": True}, "attention_bias"),
        ({"model_type": "kimi_k3"}, "model_type"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config"),
        ({"num_key_value_heads": 8}, "num_key_value_heads"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_engine_does_not_compute_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    """An unknown key, or a known one with another meaning, is refused before any weight is read."""
    with pytest.raises(UnsupportedError, match=named):
        parse_config(changed(**changes), "config.json")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": "2304"}, "hidden_size is '2304', expected int"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": True}, "hidden_size is True, expected int"),
        ({"model_type": ...}, "model_type is missing"),
        ({"linear_attn_config": ...}, "full_attn_layers is missing"),
        ({"layer_types": ["full_attention"] * 3}, "expected 8 of"),
        ({"layer_types": ["mamba"] * 8}, "layer_types is .*mamba"),
        ({"linear_attn_config": PUBLISHED["linear_attn_config"] | {"full_attn_layers": [0, 4]}}, "each of 1..8 once"),
        ({"num_experts_per_token": 300}, "num_experts_per_token 300"),
        ({"num_expert_group": 3}, "3 groups"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_values_are_named(changes: dict[str, Any], named: str) -> None:
    """A missing, mistyped or contradictory value is a broken checkpoint, and the key is named."""
    with pytest.raises(CheckpointError, match=named):
        parse_config(changed(**changes), "config.json")


def test_unreadable_files_are_broken_checkpoints(tmp_path: Path) -> None:
    """No file, no JSON, and JSON that is no object each say what was found."""
    with pytest.raises(CheckpointError, match="is missing"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(CheckpointError, match="found list"):
        read_config(tmp_path)
