"""Fixtures: checkpoints for the engine, random ones in the shapes of the embedded ones."""

from __future__ import annotations

from pathlib import Path

import pytest

TINY = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "linear_head_dim": 16,
    "linear_num_heads": 2,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "mlp_layer_types": ["dense"] * 4,
    "initializer_range": 0.06,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 16384,
}
"""A KDA, KDA, KDA, MLA model that runs in milliseconds."""
TINY_SHAPES: dict[str, dict[str, object]] = {
    "hybrid": {},
    "mostly-attention": {
        "layer_types": ["linear_attention"] + ["full_attention"] * 3,
        "linear_num_heads": 1,
    },
    "experts": {"mlp_layer_types": ["dense", "sparse", "sparse", "dense"], "q_lora_rank": 24},
}


def save_tiny_model(folder: Path, shape: str) -> Path:
    """Save a random model and a byte tokenizer to ``folder`` as transformers does."""
    import torch
    from transformers import KimiLinearConfig, KimiLinearForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(7)
    model = KimiLinearForCausalLM(KimiLinearConfig(**(TINY | TINY_SHAPES[shape])))
    for name, weight in model.named_parameters():
        # As initialised, most channels forget within a dozen tokens, and lost state would go unseen.
        if name.endswith("A_log"):
            torch.nn.init.uniform_(weight, -6.0, -1.0)
        elif name.endswith("norm.weight"):
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)
    return folder


def save_byte_tokenizer(folder: Path) -> None:
    """A tokenizer whose tokens are bytes and five markers, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    markers = ["<pad>", "<bos>", "<eos>", "<user>", "<reply>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(markers + alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",  # noqa: S106 - a word of a vocabulary
        bos_token="<bos>",  # noqa: S106 - as above
        eos_token="<eos>",  # noqa: S106 - as above
        additional_special_tokens=["<user>", "<reply>"],
        chat_template="{{ bos_token }}{% for m in messages %}<user>{{ m['content'] }}{% endfor %}<reply>",
    )
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of random checkpoints: ``hybrid``, ``mostly-attention``, ``experts``. Copy before changing one."""
    root = tmp_path_factory.mktemp("models")
    return {shape: save_tiny_model(root / shape, shape) for shape in TINY_SHAPES}


@pytest.fixture(scope="session", params=list(TINY_SHAPES))
def trained_or_random(request: pytest.FixtureRequest, tiny_models: dict[str, Path], repository: Path) -> Path:
    """An embedded model where there is one of that shape, else a random one."""
    embedded = repository / "evalgate" / "assets" / str(request.param)
    return embedded if (embedded / "config.json").is_file() else tiny_models[request.param]
