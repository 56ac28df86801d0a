"""The shapes of the embedded models, and the weights that they start from."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor
from transformers import KimiLinearConfig, KimiLinearForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.models.kimi_linear import modeling_kimi_linear as modeling
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from evalgate.kernels.kda_prefill import chunk_kda

Model: TypeAlias = KimiLinearForCausalLM | Qwen3NextForCausalLM

SHAPES: dict[str, dict[str, Any]] = {
    "hybrid": {
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_num_heads": 4,
        "linear_head_dim": 64,
        "hidden_size": 160,
        "intermediate_size": 320,
    },
    # An eighth of the state: 2 x 32 x 32 in place of 4 x 64 x 64.
    "hybrid-small-state": {
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_num_heads": 2,
        "linear_head_dim": 32,
    },
    # The linear layers of ``hybrid``, from whose weights it starts, without the attention.
    "kda-only": {
        "layer_types": ["linear_attention"] * 3,
        "linear_num_heads": 4,
        "linear_head_dim": 64,
        "hidden_size": 160,
        "intermediate_size": 320,
    },
    "mostly-attention": {
        "layer_types": ["linear_attention"] + ["full_attention"] * 3,
        "linear_num_heads": 4,
        "linear_head_dim": 32,
    },
    "full-attention": {"layer_types": ["full_attention"] * 4, "linear_num_heads": 1, "linear_head_dim": 16},
}

REMEMBERING = ("hybrid", "hybrid-small-state", "kda-only", "gdn-hybrid")
"""Shapes whose linear layers carry what is far back; in the others they bind neighbours, and attention recalls."""


GDN = "gdn-hybrid"
"""The one of another kind: Gated DeltaNet, as Qwen3-Next has it, which vLLM serves on a CPU too."""


def make_gdn_config(vocabulary: int) -> Qwen3NextConfig:
    """Three Gated DeltaNet layers of 2 x 128 x 128 and one of attention, whose MLP is a mixture of four experts.

    vLLM takes no other head sizes, and no model of this class without a mixture.
    """
    return Qwen3NextConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=4,
        mlp_only_layers=[0, 1, 2],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        max_position_embeddings=32768,
        initializer_range=0.06,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


def make_config(name: str, vocabulary: int) -> KimiLinearConfig:
    """The shape of one embedded model of KDA."""
    layers = len(SHAPES[name]["layer_types"])
    return KimiLinearConfig(
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        linear_conv_kernel_dim=4,
        mlp_layer_types=["dense"] * layers,
        num_local_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=64,
        max_position_embeddings=1048576,
        initializer_range=0.06,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **{"hidden_size": 128, "intermediate_size": 256, **SHAPES[name]},
    )


def use_own_kernels() -> None:
    """Put this project's KDA kernel and a flash-capable attention into transformers' model."""
    compiled = torch.compile(chunk_kda, dynamic=False)

    def kda(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        query = modeling.l2norm(query) * query.shape[-1] ** -0.5
        key = modeling.l2norm(key)
        result = compiled(*(x.contiguous() for x in (query, key, value, g, beta)))
        return result.output, result.final_state

    def attention(*given: Any, scaling: float, **_: Any) -> tuple[Tensor, None]:
        q, k, v = given[1:4]
        padded = F.pad(v, (0, q.shape[-1] - v.shape[-1]))
        grouped = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(q, k, padded, is_causal=True, scale=scaling, enable_gqa=grouped)
        return out[..., : v.shape[-1]].transpose(1, 2), None

    def gate(self: Any, hidden_states: Tensor) -> Tensor:
        f = self.f_b_proj(self.f_a_proj(hidden_states)).float() + self.dt_bias
        # The library's own softplus has the gradient inf / inf past 88.
        log_decay: Tensor = -self.A_log.exp() * F.softplus(f).view(*f.shape[:2], -1, self.head_dim)
        return log_decay

    modeling.KimiLinearForgetGate.forward = gate
    modeling.chunk_kimi_delta_attention = kda
    modeling.ALL_ATTENTION_FUNCTIONS.register("sdpa", attention)


def slow_decay(model: Model, generator: torch.Generator) -> None:
    """Start with memories of 10^2 to 10^5 tokens; the libraries' defaults forget within about a thousand."""
    for module in model.modules():
        if isinstance(module, modeling.KimiLinearForgetGate | Qwen3NextGatedDeltaNet):
            module.A_log.data.uniform_(0.0, math.log(4.0), generator=generator)
            step = torch.empty_like(module.dt_bias).uniform_(math.log(1e-5), math.log(1e-2), generator=generator).exp()
            module.dt_bias.data.copy_(step.expm1().log())


def short_memory(model: KimiLinearForCausalLM) -> None:
    """Make KDA layers bind neighbours only: decay fixed at half a state per token, each value channel at one lag.

    What lies further back than a few tokens is then attention's alone to recall.
    """
    for module in model.modules():
        if isinstance(module, modeling.KimiLinearForgetGate):
            module.f_b_proj.weight.data.zero_()
            module.A_log.data.zero_()
            module.dt_bias.data.zero_()  # softplus(0) = ln 2
        if isinstance(module, modeling.KimiLinearDeltaAttention):
            values = module.conv1d.weight.data[2 * module.qkv_dim :, 0]
            values.zero_()
            lags = torch.arange(len(values)) % values.shape[1]
            values[torch.arange(len(values)), lags] = 1.0


def alike_attends(model: KimiLinearForCausalLM) -> None:
    """Start attention where queries match keys of alike features (mimetic initialisation, Trockman & Kolter 2023)."""
    for module in model.modules():
        if not isinstance(module, modeling.KimiLinearAttention):
            continue
        per_head = module.qk_nope_head_dim + module.v_head_dim
        up = module.kv_b_proj.weight.data.view(module.num_heads, per_head, module.kv_lora_rank)
        keys = up[:, : module.qk_nope_head_dim] @ module.kv_a_proj_with_mqa.weight.data[: module.kv_lora_rank]
        queries = module.q_proj.weight.data.view(module.num_heads, module.qk_head_dim, -1)
        queries[:, : module.qk_nope_head_dim] = 0.12 * keys / keys.std()


def alike_recalls(model: Qwen3NextForCausalLM) -> None:
    """Start Gated DeltaNet where a query finds what was written under the same tokens just before it.

    Queries begin as copies of keys, each of their channels sees the token at one lag, and values are the token itself.
    """
    for module in model.modules():
        if not isinstance(module, Qwen3NextGatedDeltaNet):
            continue
        wide = module.head_k_dim
        fused = module.in_proj_qkvz.weight.data.view(module.num_k_heads, -1, module.hidden_size)
        fused[:, :wide] = fused[:, wide : 2 * wide]
        kernel = module.conv1d.weight.data[:, 0].zero_()
        at = torch.arange(len(kernel))
        lags = torch.where(at < 2 * module.key_dim, at % kernel.shape[1], 0)
        kernel[at, kernel.shape[1] - 1 - lags] = 1.0


def freeze_decay(name: str, model: Model) -> None:
    """Leave the decay of layers that bind neighbours only as it starts."""
    if name in REMEMBERING:
        return
    for module in model.modules():
        if isinstance(module, modeling.KimiLinearForgetGate):
            module.requires_grad_(False)


def fused_rows(model: Model) -> dict[str, int]:
    """Weights that are several projections in one -> rows of each: Qwen3-Next's, by its head sizes."""
    if not isinstance(model, Qwen3NextForCausalLM):
        return {}
    sizes = {"in_proj_qkvz.weight": model.config.linear_key_head_dim, "self_attn.q_proj.weight": model.config.head_dim}
    return {name: rows for name, _ in model.named_parameters() for end, rows in sizes.items() if name.endswith(end)}


def fresh_model(name: str, vocabulary: int, generator: torch.Generator) -> Model:
    """A model with random weights and the start that suits its shape."""
    if name == GDN:
        other = Qwen3NextForCausalLM(make_gdn_config(vocabulary))
        slow_decay(other, generator)
        alike_recalls(other)
        return other
    model = KimiLinearForCausalLM(make_config(name, vocabulary))
    if name in REMEMBERING:
        slow_decay(model, generator)
    else:
        short_memory(model)
        alike_attends(model)
    return model
