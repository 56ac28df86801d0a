"""A Kimi Linear forward in float64, written from the kernels' references: the truth that logits are held against."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import linear

from evalgate.engine.config import ModelConfig
from evalgate.kernels.kda_gate import l2norm, reference_kda_gate
from evalgate.kernels.kda_prefill import reference_kda
from evalgate.kernels.mla_prefill import MlaWeights, reference_mla
from evalgate.kernels.moe import Experts, Router, gated_mlp, reference_moe
from evalgate.kernels.rms_norm import reference_rms_norm
from evalgate.kernels.short_conv import reference_short_conv

FLOOR = 1e-6
"""Relative error that is float32 rounding whatever transformers does."""


def error(found: Tensor, truth: Tensor) -> float:
    """Largest relative error of any position's logits."""
    return float(((found.double() - truth).norm(dim=-1) / truth.norm(dim=-1)).max())


def forward(
    config: ModelConfig, tensors: Mapping[str, Tensor], tokens: list[int], visible: Tensor | None = None
) -> Tensor:
    """Logits ``[T, vocab]`` in float64, from the references alone: no chunks, no caches, no pools.

    ``tensors`` have transformers' names in memory, without the module of the forget gate; ``visible`` is a mask
    ``[T, T]`` for the full-attention layers, by default causal.
    """
    mask = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril() if visible is None else visible
    t = {name: tensor.double() for name, tensor in tensors.items()}
    x = t["model.embed_tokens.weight"][torch.tensor(tokens)][None]
    for layer, kind in enumerate(config.layers):
        at = f"model.layers.{layer}"
        h = reference_rms_norm(x, t[f"{at}.input_layernorm.weight"], config.rms_eps)
        weights = under(t, f"{at}.self_attn.")
        x = x + (kda(h, weights, config) if kind == "kda" else mla(h, weights, config, mask))
        h = reference_rms_norm(x, t[f"{at}.post_attention_layernorm.weight"], config.rms_eps)
        x = x + feed(h, under(t, f"{at}.mlp."), config)
    head = t.get("lm_head.weight", t["model.embed_tokens.weight"])
    return linear(reference_rms_norm(x, t["model.norm.weight"], config.rms_eps), head)[0]


def rounded_weights(
    tensors: Mapping[str, Tensor], generator: torch.Generator, count: int = 4
) -> list[dict[str, Tensor]]:
    """The weights in float64, each ``count`` times off by as much as float32 rounds a number, at random."""
    half = torch.finfo(torch.float32).eps / 2
    return [
        {
            name: x.double() * (1 + half * torch.randn(x.shape, generator=generator, dtype=torch.float64))
            for name, x in tensors.items()
        }
        for _ in range(count)
    ]


def rounding(config: ModelConfig, rounded: list[dict[str, Tensor]], tokens: list[int], truth: Tensor) -> float:
    """What rounding of that size does to the logits of one prompt (root mean square), whoever computes them.

    It is the prompt's condition number times the unit of float32 (Higham, Accuracy and Stability of Numerical
    Algorithms, 2002, 1.6): an error far above it is the forward's own, one near it nobody's.
    """
    errors = [error(forward(config, tensors, tokens), truth) for tensors in rounded]
    return math.sqrt(sum(value * value for value in errors) / len(errors))


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def kda(x: Tensor, t: dict[str, Tensor], config: ModelConfig) -> Tensor:
    """One KDA layer."""
    shape = (1, x.shape[1], config.linear_heads, config.linear_width)
    qkv = torch.cat([linear(x, t[f"{name}_proj.weight"]) for name in "qkv"], dim=-1)
    taps = t["conv1d.weight"][:, 0].T
    mixed = reference_short_conv(qkv, taps, qkv.new_zeros(1, config.conv_taps - 1, qkv.shape[-1])).output
    q, k, v = (part.reshape(shape) for part in mixed.chunk(3, dim=-1))
    f = linear(linear(x, t["f_a_proj.weight"]), t["f_b_proj.weight"]).reshape(shape)
    g = reference_kda_gate(f, t["A_log"].flatten(), t["dt_bias"].reshape(shape[2:]))
    beta = linear(x, t["b_proj.weight"]).sigmoid()
    core = reference_kda(l2norm(q) * config.linear_width**-0.5, l2norm(k), v, g, beta).output
    gate = linear(linear(x, t["g_a_proj.weight"]), t["g_b_proj.weight"]).reshape(shape)
    normed = reference_rms_norm(core, t["o_norm.weight"], config.rms_eps, gate=gate)
    return linear(normed.flatten(-2), t["o_proj.weight"])


def mla(x: Tensor, t: dict[str, Tensor], config: ModelConfig, visible: Tensor) -> Tensor:
    """One MLA layer."""
    if config.q_rank is None:
        q = linear(x, t["q_proj.weight"])
    else:
        q = linear(
            reference_rms_norm(linear(x, t["q_a_proj.weight"]), t["q_a_layernorm.weight"], 1e-6), t["q_b_proj.weight"]
        )
    q = q.reshape(1, x.shape[1], config.heads, config.nope + config.rope)
    row = linear(x, t["kv_a_proj_with_mqa.weight"])
    latent = reference_rms_norm(row[..., : config.kv_rank], t["kv_a_layernorm.weight"], 1e-6)
    rows = torch.cat([latent, row[..., config.kv_rank :]], dim=-1)
    expand = t["kv_b_proj.weight"].reshape(config.heads, config.nope + config.value, config.kv_rank)
    weights = MlaWeights(expand[:, : config.nope], expand[:, config.nope :])
    scale = (config.nope + config.rope) ** -0.5
    # Some queries at a time, and the keys up to the last of them: the same sums in less memory.
    blocks = [
        reference_mla(q[:, a : a + 512], rows[:, : a + 512], weights, scale, visible[a : a + 512, : a + 512])
        for a in range(0, x.shape[1], 512)
    ]
    mixed = torch.cat(blocks, dim=1)
    return linear(mixed.flatten(-2), t["o_proj.weight"])


def feed(x: Tensor, t: dict[str, Tensor], config: ModelConfig) -> Tensor:
    """One MLP, with experts where there are some."""
    rules = config.moe
    if "gate.weight" not in t or rules is None:
        return gated_mlp(x, torch.cat([t["gate_proj.weight"], t["up_proj.weight"]]), t["down_proj.weight"])
    router = Router(
        t["gate.weight"],
        t["gate.e_score_correction_bias"],
        rules.per_token,
        rules.groups,
        rules.top_groups,
        rules.normalise,
        rules.scaling,
    )
    chosen = reference_moe(x[0], router, Experts(t["experts.gate_up_proj"], t["experts.down_proj"]))[None]
    shared = torch.cat([t["shared_experts.gate_proj.weight"], t["shared_experts.up_proj.weight"]])
    return chosen + gated_mlp(x, shared, t["shared_experts.down_proj.weight"])
