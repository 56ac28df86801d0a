"""Checkpoints in the layout in which the 48B Kimi Linear was published, at any size."""

from __future__ import annotations

from typing import Any

FULL_ATTENTION = [4, 8, 12, 16, 20, 24, 27]
"""Layers of the published model, counted from 1, that attend to everything."""

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
        "full_attn_layers": FULL_ATTENTION,
        "head_dim": 128,
        "kda_layers": [layer for layer in range(1, 28) if layer not in FULL_ATTENTION],
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
    "num_hidden_layers": 27,
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
"""The sizes and keys of the configuration that comes with the published 48B weights."""


def changed(**changes: Any) -> dict[str, Any]:
    """The published configuration with some keys changed; ``...`` takes a key away."""
    return {key: value for key, value in (PUBLISHED | changes).items() if value is not ...}
