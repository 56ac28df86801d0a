"""Make an embedded model from nothing: tokenizer, weights, and the table of how training went.

    python tools/train_builtin.py hybrid --out evalgate/assets/hybrid

The model is transformers' own KimiLinearForCausalLM, with this project's CPU form of the KDA kernel in it
(transformers' own is about ten times slower).  Seeded; at most an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from builtin_lessons import NUMBERS, SINGLES, STATE, Lesson, Rung, Teacher
from builtin_tokenizer import make_tokenizer
from muon import Muon
from torch import Tensor
from transformers import KimiLinearConfig, KimiLinearForCausalLM
from transformers.models.kimi_linear import modeling_kimi_linear as modeling

from evalgate.kernels.kda_prefill import chunk_kda

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

CURRICULUM: dict[str, list[Rung]] = {
    "hybrid": [
        Rung(128, 48, 400, (3, 5), 3, NUMBERS),
        Rung(256, 24, 400, (4, 12), 5, NUMBERS),
        Rung(512, 12, 350, (6, 20), 10, STATE),
        Rung(1024, 6, 250, (6, 44), 18, STATE),
        Rung(2048, 3, 300, (8, 60), 28, STATE),
        Rung(4096, 2, 160, (8, 70), 32, STATE),
    ],
    "mostly-attention": [
        Rung(80, 72, 500, (2, 3), 2, SINGLES),
        Rung(128, 48, 500, (3, 4), 3, SINGLES),
        Rung(256, 24, 400, (4, 8), 5, SINGLES),
        Rung(512, 12, 300, (6, 16), 8, SINGLES),
        Rung(1024, 6, 500, (3, 20), 10, SINGLES),
    ],
}
CURRICULUM["full-attention"] = CURRICULUM["mostly-attention"]
CURRICULUM["hybrid-small-state"] = CURRICULUM["hybrid"]
CURRICULUM["kda-only"] = [
    Rung(256, 24, 60, (4, 12), 5, STATE),
    Rung(512, 12, 70, (6, 20), 10, STATE),
    Rung(1024, 6, 60, (6, 44), 18, STATE),
    Rung(2048, 3, 50, (8, 60), 28, STATE),
]
REMEMBERING = ("hybrid", "hybrid-small-state", "kda-only")
"""Shapes whose linear layers carry what is far back; in the others they bind neighbours, and attention recalls."""
MASTERED = 0.985
"""Share of right answer tokens, over the last 100 steps, at which the next rung begins early."""


def make_config(name: str, vocabulary: int) -> KimiLinearConfig:
    """The shape of one embedded model."""
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
        out = F.scaled_dot_product_attention(q, k, padded, is_causal=True, scale=scaling)
        return out[..., : v.shape[-1]].transpose(1, 2), None

    def gate(self: Any, hidden_states: Tensor) -> Tensor:
        f = self.f_b_proj(self.f_a_proj(hidden_states)).float() + self.dt_bias
        # The library's own softplus has the gradient inf / inf past 88.
        log_decay: Tensor = -self.A_log.exp() * F.softplus(f).view(*f.shape[:2], -1, self.head_dim)
        return log_decay

    modeling.KimiLinearForgetGate.forward = gate
    modeling.chunk_kimi_delta_attention = kda
    modeling.ALL_ATTENTION_FUNCTIONS.register("sdpa", attention)


def slow_decay(model: KimiLinearForCausalLM, generator: torch.Generator) -> None:
    """Start with memories of 10^2 to 10^5 tokens; the library's default forgets within about a thousand."""
    for module in model.modules():
        if isinstance(module, modeling.KimiLinearForgetGate):
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


def fresh_model(name: str, vocabulary: int, generator: torch.Generator) -> KimiLinearForCausalLM:
    """A model with random weights and the start that suits its shape."""
    model = KimiLinearForCausalLM(make_config(name, vocabulary))
    if name in REMEMBERING:
        slow_decay(model, generator)
    else:
        short_memory(model)
        alike_attends(model)
    return model


def take_over(model: KimiLinearForCausalLM, other: KimiLinearForCausalLM) -> None:
    """Put the weights of ``other`` into ``model``; layers that only one of them has stay as they are."""
    missing, unknown = model.load_state_dict(other.state_dict(), strict=False)
    print(f"taken over; left as they were: {len(missing)}, not taken: {len(unknown)}", flush=True)


class Steps:
    """The optimizers and their shared schedule: warm-up, then a cosine over all steps of the curriculum."""

    def __init__(self, model: KimiLinearForCausalLM, total: int, peak: float) -> None:
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        hidden = [p for n, p in trained if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
        chosen = {id(p) for p in hidden}
        others = [p for _, p in trained if id(p) not in chosen]
        self._parameters = [p for _, p in trained]
        self._rated: list[tuple[torch.optim.Optimizer, float]] = [
            (Muon(hidden, lr=0.02, momentum=0.95), 0.02),
            (torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0), 3e-3),
        ]
        self.total, self.done = total, 0
        self._peak, self._started = peak, time.monotonic()

    def take(self) -> None:
        """One step on the gradients that are there; a batch that overflowed must not end the run."""
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        cosine = 0.04 + 0.96 * 0.5 * (1 + math.cos(math.pi * self.done / self.total))
        rate = self._peak * min(1.0, (self.done + 1) / 50) * cosine
        for optimizer, base in self._rated:
            for group in optimizer.param_groups:
                group["lr"] = base * rate
            if norm.isfinite():
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.done += 1

    @property
    def seconds(self) -> float:
        """Since training began."""
        return time.monotonic() - self._started


def train(name: str, out: Path, seed: int, scale: float, start: Path | None, first_rung: int, peak: float) -> None:
    """Run the curriculum and save the checkpoint after each rung."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    use_own_kernels()
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(out)
    teacher = Teacher(tokenizer, seed, rest_weight=0.1)
    model = fresh_model(name, len(tokenizer), generator)
    if start is not None:
        take_over(model, KimiLinearForCausalLM.from_pretrained(start, dtype=torch.float32))
    model.set_attn_implementation("sdpa")
    model.train()
    for module in model.modules():
        if isinstance(module, modeling.KimiLinearForgetGate) and name not in REMEMBERING:
            module.requires_grad_(False)
    print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    curriculum = [r._replace(steps=max(1, int(r.steps * scale))) for r in CURRICULUM[name]][first_rung:]
    steps = Steps(model, sum(r.steps for r in curriculum), peak)
    for rung in curriculum[:-1]:
        climb(model, teacher, rung, rung.steps, steps, generator)
        save(model, tokenizer, out)
    # Steps that earlier rungs did not need go to the last.
    climb(model, teacher, curriculum[-1], steps.total - steps.done, steps, generator, until=2.0)
    save(model, tokenizer, out)
    print(f"trained in {steps.seconds / 60:.1f} minutes", flush=True)


def climb(
    model: KimiLinearForCausalLM,
    teacher: Teacher,
    rung: Rung,
    count: int,
    steps: Steps,
    generator: torch.Generator,
    until: float = MASTERED,
) -> None:
    """Train on one rung for ``count`` steps, or until the share of right answer tokens reaches ``until``."""
    recent: deque[float] = deque(maxlen=100)
    for step in range(count):
        loss, right = learn(model, teacher.lesson(rung, step), generator)
        steps.take()
        recent.append(right)
        mean = sum(recent) / len(recent)
        if steps.done % 25 == 0:
            where = f"{steps.done:5d}/{steps.total} T={rung.tokens}"
            print(f"{where} loss {loss:.3f} right {right:.3f} mean {mean:.3f} {steps.seconds:.0f}s", flush=True)
        if len(recent) == recent.maxlen and mean >= until:
            return


def learn(model: KimiLinearForCausalLM, lesson: Lesson, generator: torch.Generator) -> tuple[float, float]:
    """One backward pass; returns (loss, share of right answer tokens).

    Logits are taken at every answer token and at a quarter of the rest: the vocabulary is a large part of the work.
    """
    answers = lesson.weights == 1.0
    rest = (lesson.weights > 0) & ~answers & (torch.rand(answers.shape, generator=generator) < 0.25)
    chosen = answers | rest
    logits = model.lm_head(model.model(lesson.inputs, use_cache=False).last_hidden_state[chosen])
    targets, weights = lesson.targets[chosen], lesson.weights[chosen]
    losses = F.cross_entropy(logits, targets, reduction="none")
    loss = (losses * weights).sum() / weights.sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    right = (logits.argmax(-1) == targets)[weights == 1.0].float().mean()
    return float(loss.detach()), float(right)


def save(model: KimiLinearForCausalLM, tokenizer: Any, out: Path) -> None:
    """Write the bf16 checkpoint (the gates' A_log and dt_bias stay fp32)."""
    copy = KimiLinearForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    for key, parameter in copy.named_parameters():
        if not key.endswith(("A_log", "dt_bias")):
            parameter.data = parameter.data.to(torch.bfloat16)
    copy.config.dtype = "bfloat16"
    copy.save_pretrained(out)
    tokenizer.save_pretrained(out)
    # Indented it takes two and a half times the room, in every model again.
    packed = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))
    text = json.dumps(packed, ensure_ascii=False, separators=(",", ":"))
    (out / "tokenizer.json").write_text(text, encoding="utf-8")
    shutil.rmtree(out / ".cache", ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(SHAPES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="multiply every rung's steps")
    parser.add_argument("--start", type=Path, help="go on from this checkpoint instead of random weights")
    parser.add_argument("--first-rung", type=int, default=0, help="skip the rungs before this one")
    parser.add_argument("--peak", type=float, default=1.0, help="multiply the learning rates")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train(options.name, options.out, options.seed, options.scale, options.start, options.first_rung, options.peak)
