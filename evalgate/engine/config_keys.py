"""Keys of a ``config.json``: used, harmless, known with one value that is computed, or refused by name.

A checkpoint that says more than this engine does (a bounded gate, a rotary, another router) would load and answer
nonsense.  Kimi K3's text model, for one, carries the same ``model_type`` as Kimi Linear.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping

HARMLESS = frozenset({
    "architectures", "auto_map", "bos_token_id", "dtype", "head_dim", "initializer_range", "output_router_logits",
    "pad_token_id", "pretraining_tp", "qk_head_dim", "rope_theta", "torch_dtype", "transformers_version", "use_cache",
    "_name_or_path", "return_dict", "output_hidden_states", "output_attentions", "chunk_size_feed_forward", "id2label",
    "label2id", "is_encoder_decoder", "problem_type", "_attn_implementation_autoset", "attention_dropout",
})  # fmt: skip  # a list of names reads best in rows
"""Bookkeeping, training settings, and sizes that follow from others."""

ONLY_VALUE: dict[str, tuple[object, ...]] = {
    "model_type": ("kimi_linear",),
    "activation_situ_beta": (None,),
    "activation_situ_linear_beta": (None,),
    "attention_bias": (False,),
    "attn_res_block_size": (None,),
    "hidden_act": ("silu",),
    "latent_moe_use_norm": (False, None),
    "mla_use_nope": (True,),
    "mla_use_output_gate": (False, None),
    "moe_layer_freq": (1,),
    "moe_router_activation_func": ("sigmoid",),
    "num_nextn_predict_layers": (0, None),
    "quantization_config": (None,),
    "rope_parameters": (None,),
    "rope_scaling": (None,),
    "routed_expert_hidden_size": (None,),
    "topk_method": ("noaux_tc", None),
    "use_grouped_topk": (True,),
}
"""Keys whose meaning is known, and the only values that this engine computes; None is as good as no key."""

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

LINEAR_USED = frozenset({"full_attn_layers", "kda_layers", "head_dim", "num_heads", "short_conv_kernel_size"})
"""Keys of ``linear_attn_config``, where layers count from 1."""
LINEAR_ONLY_VALUE: dict[str, tuple[object, ...]] = {
    "gate_lower_bound": (None,),
    "use_full_rank_gate": (False, None),
}

NAMED = 4
"""Most refusals that one message spells out."""


def refusal(body: Mapping[str, object]) -> str | None:
    """What in a parsed ``config.json`` this engine does not compute, in words; None where there is nothing."""
    found = list(_refusals(body, ""))
    if not found:
        return None
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return "; ".join(found[:NAMED]) + more


def _refusals(body: Mapping[str, object], at: str) -> Iterator[str]:
    yield from _check(body, at, HARMLESS | USED | ALIASES.keys(), ONLY_VALUE)
    linear = body.get("linear_attn_config")
    if isinstance(linear, dict):
        yield from _check(linear, f"{at}linear_attn_config.", LINEAR_USED, LINEAR_ONLY_VALUE)
    text = body.get("text_config")
    if isinstance(text, dict):
        yield from _refusals(text, f"{at}text_config.")


def _check(
    body: Mapping[str, object], at: str, known: frozenset[str], only: Mapping[str, tuple[object, ...]]
) -> Iterator[str]:
    for key, value in body.items():
        if key in only:
            # By type too: True is not the 1 of moe_layer_freq, nor 0 the False of attention_bias.
            if not any(value == allowed and type(value) is type(allowed) for allowed in only[key]):
                yield f"{at}{key} is {reprlib.repr(value)}, only {only[key][0]!r} is computed"
        elif key == "text_config":
            yield f"{at}text_config makes this part of a larger model"
        elif key not in known:
            yield f"unknown key {at}{key}"
