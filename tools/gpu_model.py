"""Random models for `gpu_check.py`: checkpoint folders in any shape, with the tokenizer of an embedded model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from gpu_inputs import Maker
from safetensors.torch import save_file
from torch import Tensor

from evalgate.backends.models import find_model
from evalgate.engine.config import read_config
from evalgate.engine.weight_names import Wanted, wanted_tensors

BASE = "builtin:hybrid"
"""Whose tokenizer, vocabulary and other settings a random model has."""
WIDE: dict[str, object] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "linear_num_heads": 32,
    "linear_head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "qk_head_dim": 192,
    "v_head_dim": 128,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "num_experts": 16,
    "num_experts_per_token": 8,
}
"""The first four layers of Kimi-Linear-48B, three KDA and one MLA, with 16 of its 256 experts: 1 GB in bfloat16."""
NARROW: dict[str, object] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "linear_num_heads": 1,
    "linear_head_dim": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_head_dim": 32,
    "v_head_dim": 16,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "dense"],
}
"""For the interpreter."""


def random_checkpoint(folder: Path, changes: Mapping[str, object], make: Maker) -> Path:
    """Write a checkpoint with random weights and the settings of BASE but for ``changes``."""
    shutil.copytree(find_model(BASE), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(settings | dict(changes)), encoding="utf-8")
    tensors = {wanted.name: _random(wanted, make).cpu() for wanted in wanted_tensors(read_config(folder))}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _random(wanted: Wanted, make: Maker) -> Tensor:
    """Matrices that keep the size of what they multiply, norms of ones, and channels that forget slowly or fast."""
    *_, last = wanted.shape
    if wanted.name.endswith("norm.weight"):
        return torch.ones(wanted.shape, dtype=torch.bfloat16)
    if wanted.name.endswith("A_log"):
        return make.uniform(*wanted.shape, low=-6.0, high=-1.0).bfloat16()
    if wanted.name.endswith("e_score_correction_bias"):
        return torch.zeros(wanted.shape, dtype=torch.bfloat16)
    scale = 1.0 if wanted.name.endswith("dt_bias") else last**-0.5
    return make.normal(*wanted.shape, dtype=torch.bfloat16, scale=scale)
