"""Checkpoints in the layout in which the 48B Kimi Linear was published, at any size."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

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


SMALL: dict[str, Any] = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 64,
    "initializer_range": 0.06,
    "intermediate_size": 96,
    "kv_lora_rank": 32,
    "linear_attn_config": PUBLISHED["linear_attn_config"] | {"head_dim": 16, "num_heads": 2},
    "model_max_length": 16384,
    "moe_intermediate_size": 24,
    "num_attention_heads": 2,
    "num_expert_group": 2,
    "num_experts": 8,
    "num_experts_per_token": 2,
    "num_key_value_heads": 2,
    "num_shared_experts": 2,
    "pad_token_id": 0,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "vocab_size": 320,
}
"""The published 27 layers at a width that runs in milliseconds, with groups of experts and two that are shared."""

STORED_IN_FP32 = ("A_log", "dt_bias", "gate.weight", "e_score_correction_bias")
"""Tensors that the published weights have in float32; all others are bfloat16."""


def untrained_model(**changes: Any) -> Any:
    """Transformers' model (float32) of the published configuration with some keys changed."""
    from transformers import KimiLinearConfig, KimiLinearForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers' own remark on the published rope_scaling: null
        return KimiLinearForCausalLM(KimiLinearConfig(**changed(**changes))).eval()


def random_model() -> Any:
    """Transformers' model of the small published configuration; its weights survive being stored.

    As initialised, most channels forget within a dozen tokens, norms do nothing and the router has no bias: a loader
    could lose them unseen.
    """
    import torch

    torch.manual_seed(5)
    model = untrained_model(**SMALL)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if name.endswith("A_log"):
                weight.uniform_(-6.0, -1.0)
            elif name.endswith("e_score_correction_bias"):
                weight.normal_(0.0, 0.2)
            elif name.endswith(("norm.weight", "layernorm.weight")):
                weight.uniform_(0.5, 1.5)
            if not name.endswith(STORED_IN_FP32):
                weight.copy_(weight.bfloat16())
    return model


def published_tensors(model: Any) -> dict[str, Tensor]:
    """Weights of transformers' model under the names, in the pieces and in the dtypes of the published layout."""
    found: dict[str, Tensor] = {}
    weights = model.state_dict()
    for name, weight in weights.items():
        stored = weight if name.endswith(STORED_IN_FP32) else weight.bfloat16()
        at, _, what = name.replace(".self_attn.forget_gate.", ".self_attn.").rpartition(".mlp.")
        sparse = f"{at}.mlp.gate.weight" in weights
        if what.endswith("conv1d.weight"):
            for part, piece in zip("qkv", stored.chunk(3), strict=True):
                found[what.replace("conv1d", f"{part}_conv1d")] = piece
        elif what == "experts.gate_up_proj":
            for expert, (gate, up) in enumerate(both.chunk(2) for both in stored):
                found[f"{at}.block_sparse_moe.experts.{expert}.w1.weight"] = gate
                found[f"{at}.block_sparse_moe.experts.{expert}.w3.weight"] = up
        elif what == "experts.down_proj":
            for expert, down in enumerate(stored):
                found[f"{at}.block_sparse_moe.experts.{expert}.w2.weight"] = down
        elif at:
            found[f"{at}.{'block_sparse_moe' if sparse else 'mlp'}.{what}"] = stored
        else:
            found[what] = stored
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}


def write_published(folder: Path, tensors: dict[str, Tensor], shards: int = 3, **changes: Any) -> Path:
    """A checkpoint folder in the published layout (small but for ``changes``), tensors dealt out to indexed shards."""
    from safetensors.torch import save_file

    def save(held: dict[str, Tensor], file: Path) -> None:
        save_file(held, file)

    return _write(folder, tensors, shards, SMALL | changes, save)


def write_published_in_outline(folder: Path, tensors: dict[str, Tensor], shards: int = 20) -> Path:
    """A checkpoint folder in the published layout and size whose weights are holes in its files: they read as zeros."""
    return _write(folder, tensors, shards, {}, _save_in_outline)


def _write(
    folder: Path,
    tensors: dict[str, Tensor],
    shards: int,
    changes: dict[str, Any],
    save: Callable[[dict[str, Tensor], Path], None],
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(changed(**changes)))
    names = sorted(tensors)
    places: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        held = names[shard::shards]
        save({name: tensors[name] for name in held}, folder / file)
        places |= dict.fromkeys(held, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def _save_in_outline(tensors: dict[str, Tensor], file: Path) -> None:
    header, end = {}, 0
    for name, tensor in tensors.items():
        dtype = {4: "F32", 2: "BF16"}[tensor.element_size()]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    with file.open("wb") as handle:
        handle.write(len(text).to_bytes(8, "little") + text)
        handle.truncate(8 + len(text) + end)
