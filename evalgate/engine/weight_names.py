"""Every tensor that a model needs: its name, its shape, and the other names and shapes that it may come under.

Names are transformers' in memory, without the module of the forget gate.  Published checkpoints, and what
transformers saves, split some tensors into pieces, and call the experts' module otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from evalgate.engine.config import ModelConfig
from evalgate.engine.weight_files import Shape


class Piece(NamedTuple):
    """A part of a tensor, as it is stored by itself."""

    name: str
    shape: Shape


class Wanted(NamedTuple):
    """A tensor that the model needs."""

    name: str
    shape: Shape
    pieces: tuple[Piece, ...] = ()
    """What it may come as instead: pieces whose numbers, one after another, are its numbers."""
    flat: bool = False
    """Whether it may come with one dimension instead."""


def canonical(name: str) -> str:
    """The name, as used here, of a tensor in a file."""
    return name.replace(".block_sparse_moe.", ".mlp.").replace(".self_attn.forget_gate.", ".self_attn.")


def wanted_tensors(config: ModelConfig) -> Iterator[Wanted]:
    """Every tensor of the model."""
    yield Wanted("model.embed_tokens.weight", (config.vocab, config.hidden))
    yield Wanted("model.norm.weight", (config.hidden,))
    yield Wanted("lm_head.weight", (config.vocab, config.hidden))
    for layer, kind in enumerate(config.layers):
        at = f"model.layers.{layer}"
        yield Wanted(f"{at}.input_layernorm.weight", (config.hidden,))
        yield Wanted(f"{at}.post_attention_layernorm.weight", (config.hidden,))
        yield from (_kda if kind == "kda" else _mla)(config, f"{at}.self_attn")
        if config.sparse[layer]:
            yield from _experts(config, f"{at}.mlp")
        else:
            yield from _mlp(f"{at}.mlp", config.hidden, config.intermediate)


def _kda(config: ModelConfig, at: str) -> Iterator[Wanted]:
    heads, width, hidden = config.linear_heads, config.linear_width, config.hidden
    channels = heads * width
    for name in ("q", "k", "v"):
        yield Wanted(f"{at}.{name}_proj.weight", (channels, hidden))
    conv = (channels, 1, config.conv_taps)
    pieces = tuple(Piece(f"{at}.{name}_conv1d.weight", conv) for name in ("q", "k", "v"))
    yield Wanted(f"{at}.conv1d.weight", (3 * channels, *conv[1:]), pieces)
    for name in ("f", "g"):
        yield Wanted(f"{at}.{name}_a_proj.weight", (width, hidden))
        yield Wanted(f"{at}.{name}_b_proj.weight", (channels, width))
    yield Wanted(f"{at}.dt_bias", (channels,))
    yield Wanted(f"{at}.A_log", (1, 1, heads, 1), flat=True)
    yield Wanted(f"{at}.b_proj.weight", (heads, hidden))
    yield Wanted(f"{at}.o_norm.weight", (width,))
    yield Wanted(f"{at}.o_proj.weight", (hidden, channels))


def _mla(config: ModelConfig, at: str) -> Iterator[Wanted]:
    queries = config.heads * (config.nope + config.rope)
    if config.q_rank is None:
        yield Wanted(f"{at}.q_proj.weight", (queries, config.hidden))
    else:
        yield Wanted(f"{at}.q_a_proj.weight", (config.q_rank, config.hidden))
        yield Wanted(f"{at}.q_a_layernorm.weight", (config.q_rank,))
        yield Wanted(f"{at}.q_b_proj.weight", (queries, config.q_rank))
    yield Wanted(f"{at}.kv_a_proj_with_mqa.weight", (config.latent_row, config.hidden))
    yield Wanted(f"{at}.kv_a_layernorm.weight", (config.kv_rank,))
    yield Wanted(f"{at}.kv_b_proj.weight", (config.heads * (config.nope + config.value), config.kv_rank))
    yield Wanted(f"{at}.o_proj.weight", (config.hidden, config.heads * config.value))


def _mlp(at: str, hidden: int, intermediate: int) -> Iterator[Wanted]:
    yield Wanted(f"{at}.gate_proj.weight", (intermediate, hidden))
    yield Wanted(f"{at}.up_proj.weight", (intermediate, hidden))
    yield Wanted(f"{at}.down_proj.weight", (hidden, intermediate))


def _experts(config: ModelConfig, at: str) -> Iterator[Wanted]:
    moe = config.moe
    assert moe is not None, "a sparse layer without a mixture-of-experts configuration"
    count, width, hidden = moe.experts, moe.intermediate, config.hidden
    yield Wanted(f"{at}.gate.weight", (count, hidden))
    yield Wanted(f"{at}.gate.e_score_correction_bias", (count,))
    # w1 is the gate, w3 the other way in, w2 the way out; in the fused tensor each expert has its gate first.
    up = [Piece(f"{at}.experts.{e}.{part}.weight", (width, hidden)) for e in range(count) for part in ("w1", "w3")]
    down = [Piece(f"{at}.experts.{e}.w2.weight", (hidden, width)) for e in range(count)]
    yield Wanted(f"{at}.experts.gate_up_proj", (count, 2 * width, hidden), tuple(up))
    yield Wanted(f"{at}.experts.down_proj", (count, hidden, width), tuple(down))
    yield from _mlp(f"{at}.shared_experts", hidden, width * moe.shared)
