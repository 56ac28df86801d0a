"""config.json: both published forms are read, and whatever the engine does not compute is refused by name."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from fixtures_published import PUBLISHED, changed

from evalgate.engine.config import parse_config, read_config
from evalgate.errors import CheckpointError, UnsupportedError


def test_published_form_counts_layers_from_one() -> None:
    """27 layers of which 7 attend to everything: every fourth, and the last; the first has no experts."""
    config = parse_config(PUBLISHED, "config.json")
    assert config.layers == ("kda", "kda", "kda", "mla") * 6 + ("kda", "kda", "mla")
    assert (config.kda_layers, config.mla_layers) == (20, 7)
    assert config.sparse == (False,) + (True,) * 26
    assert (config.linear_heads, config.linear_width, config.conv_taps) == (32, 128, 4)
    assert (config.heads, config.nope, config.rope, config.value, config.q_rank) == (32, 128, 64, 128, None)
    assert config.moe is not None
    assert (config.moe.experts, config.moe.per_token, config.moe.scaling) == (256, 8, 2.446)
    assert config.window == 1_048_576
    assert config.eos == (163586,)


def test_published_form_that_transformers_saved_again_is_the_same_model(tmp_path: Path) -> None:
    """Transformers adds its own names to a published configuration and keeps the old ones; nothing changes."""
    from transformers import AutoConfig

    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # its own remark on the published rope_scaling: null
        saved = AutoConfig.from_pretrained(tmp_path)
    saved.save_pretrained(tmp_path / "saved")
    assert "layer_types" in json.loads((tmp_path / "saved" / "config.json").read_text())
    assert read_config(tmp_path / "saved") == read_config(tmp_path)


def test_form_that_transformers_saves_is_read(tiny_models: dict[str, Path]) -> None:
    """``layer_types``, ``mlp_layer_types`` and flat linear sizes mean the same."""
    config = read_config(tiny_models["experts"])
    assert config.layers == ("kda", "kda", "kda", "mla")
    assert config.sparse == (False, True, True, False)
    assert config.q_rank == 24
    assert config.moe is not None
    assert (config.moe.groups, config.moe.top_groups) == (2, 1)


def linear(**changes: Any) -> dict[str, Any]:
    """The published ``linear_attn_config`` with some keys changed."""
    return {"linear_attn_config": PUBLISHED["linear_attn_config"] | changes}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "kimi_k3"}, "model_type is 'kimi_k3', only 'kimi_linear'"),
    (linear(gate_lower_bound=-5.0), r"linear_attn_config\.gate_lower_bound is -5\.0, only None"),
    (linear(use_full_rank_gate=True), r"linear_attn_config\.use_full_rank_gate is True"),
    (linear(safe_gate=True), r"unknown key linear_attn_config\.safe_gate"),
    ({"gate_lower_bound": -5.0}, "unknown key gate_lower_bound"),
    ({"attn_res_block_size": 12}, "attn_res_block_size is 12"),
    ({"routed_expert_hidden_size": 3584}, "routed_expert_hidden_size is 3584"),
    ({"latent_moe_use_norm": True}, "latent_moe_use_norm is True"),
    ({"mla_use_output_gate": True}, "mla_use_output_gate is True"),
    ({"activation_situ_beta": 4.0}, r"activation_situ_beta is 4\.0"),
    ({"hidden_act": "situ"}, "hidden_act is 'situ', only 'silu'"),
    ({"quantization_config": {"quant_method": "compressed-tensors"}}, "quantization_config is"),
    ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers is 1, only 0"),
    ({"moe_layer_freq": 2}, "moe_layer_freq is 2"),
    ({"moe_layer_freq": True}, "moe_layer_freq is True"),
    ({"topk_method": "greedy"}, "topk_method is 'greedy'"),
    ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func is 'softmax'"),
    ({"use_grouped_topk": False}, "use_grouped_topk is False"),
    ({"rope_scaling": {"type": "yarn"}}, "rope_scaling is"),
    ({"mla_use_nope": False}, "mla_use_nope is False"),
    ({"attention_bias": True}, "attention_bias is True"),
    ({"num_key_value_heads": 8}, r"num_key_value_heads is 8, only .* \(32\)"),
    ({"vision_config": {"depth": 27}}, "unknown key vision_config"),
    ({"text_config": PUBLISHED}, "text_config makes this part of a larger model"),
    ({"text_config": {"quantization": 4}}, r"unknown key text_config\.quantization"),
    ({"text_config": linear(gate_lower_bound=-5.0)}, r"text_config\.linear_attn_config\.gate_lower_bound is -5"),
]
"""A published configuration with one more thing to it -> how the message names that thing."""


@pytest.mark.parametrize(("changes", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_what_the_engine_does_not_compute_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    """An unknown key, or a known one with another meaning, is refused before any weight is read."""
    with pytest.raises(UnsupportedError, match=named):
        parse_config(changed(**changes), "config.json")


def test_the_larger_model_of_the_family_is_refused_with_what_sets_it_apart() -> None:
    """Kimi K3 nests a text model that calls itself Kimi Linear; the message goes into it, and says how much it left."""
    text = changed(hidden_act="situ", attn_res_block_size=12, **linear(gate_lower_bound=-5.0, use_full_rank_gate=True))
    body = {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "text_config": text}
    with pytest.raises(UnsupportedError) as caught:
        parse_config(body, "config.json")
    assert str(caught.value).startswith(
        "config.json: model_type is 'kimi_k3', only 'kimi_linear' is computed; text_config makes this part of a larger "
        "model; text_config.hidden_act is 'situ', only 'silu' is computed; text_config.attn_res_block_size is 12, only "
        "None is computed; and 2 more"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"mla_use_output_gate": False, "attn_res_block_size": None, "topk_method": "noaux_tc"},
        linear(gate_lower_bound=None, use_full_rank_gate=False),
        {"num_nextn_predict_layers": None, "num_key_value_heads": None},
    ],
    ids=["top", "linear", "none"],
)
def test_keys_that_say_off_change_nothing(changes: dict[str, Any]) -> None:
    """A file may name what the model does not have."""
    assert parse_config(changed(**changes), "config.json") == parse_config(PUBLISHED, "config.json")


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": ...}, "hidden_size is missing"),
    ({"hidden_size": "2304"}, "hidden_size is '2304', expected int"),
    ({"hidden_size": 0}, "hidden_size is 0"),
    ({"hidden_size": True}, "hidden_size is True, expected int"),
    ({"q_lora_rank": 0}, "q_lora_rank is 0"),
    ({"model_type": ...}, "model_type is missing"),
    ({"rms_norm_eps": ...}, "rms_norm_eps is missing"),
    ({"eos_token_id": ["</s>"]}, "eos_token_id is .*expected whole numbers"),
    ({"linear_attn_config": ...}, r"layer_types is missing, and linear_attn_config\.full_attn_layers too"),
    ({"linear_attn_config": [4, 8]}, r"linear_attn_config is \[4, 8\], expected dict"),
    ({"layer_types": ["full_attention"] * 3}, "expected 27 of"),
    ({"layer_types": ["mamba"] * 27}, "layer_types is .*mamba"),
    ({"layer_types": [["full_attention"]] * 27}, "layer_types is"),
    ({"layer_types": ["full_attention"] * 27}, "layer_types is not what linear_attn_config says"),
    ({"mlp_layer_types": ["sparse"] * 27}, "mlp_layer_types is not what first_k_dense_replace 1 says"),
    ({"first_k_dense_replace": ...}, "first_k_dense_replace is missing"),
    ({"linear_head_dim": 64}, "head_dim is 128, but linear_head_dim is 64"),
    (linear(full_attn_layers=[0, 4]), r"each of 1\.\.27 once"),
    (linear(full_attn_layers=["4"]), "full_attn_layers is .*expected whole numbers"),
    (linear(short_conv_kernel_size=None), "short_conv_kernel_size is missing"),
    ({"num_experts_per_token": 300}, "num_experts_per_token 300"),
    ({"num_expert_group": 3}, "3 groups"),
]


@pytest.mark.parametrize(("changes", "named"), IMPOSSIBLE, ids=[named for _, named in IMPOSSIBLE])
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
