"""Make an embedded model from nothing: tokenizer, weights, and the table of how training went.

    python tools/train_builtin.py hybrid --out evalgate/assets/hybrid

The model is transformers' own KimiLinearForCausalLM, with this project's CPU form of the KDA kernel in it
(transformers' own is about ten times slower), or its Qwen3NextForCausalLM as it is.  Seeded.
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
from builtin_shapes import GDN, SHAPES, Model, freeze_decay, fresh_model, fused_rows, use_own_kernels
from builtin_tokenizer import make_tokenizer
from muon import Muon

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
CURRICULUM[GDN] = [
    Rung(128, 48, 350, (3, 5), 3, NUMBERS),
    Rung(256, 24, 350, (4, 12), 5, NUMBERS),
    Rung(512, 12, 250, (6, 20), 10, NUMBERS),
    Rung(1024, 6, 200, (6, 44), 18, NUMBERS),
    Rung(2048, 3, 150, (8, 60), 28, NUMBERS),
]
CURRICULUM["full-attention"] = CURRICULUM["mostly-attention"]
CURRICULUM["hybrid-small-state"] = CURRICULUM["hybrid"]
CURRICULUM["kda-only"] = [
    Rung(256, 24, 60, (4, 12), 5, STATE),
    Rung(512, 12, 70, (6, 20), 10, STATE),
    Rung(1024, 6, 60, (6, 44), 18, STATE),
    Rung(2048, 3, 50, (8, 60), 28, STATE),
]
MASTERED = 0.985
"""Share of right answer tokens, over the last 100 steps, at which the next rung begins early."""


def take_over(model: Model, other: Model) -> None:
    """Put the weights of ``other`` into ``model``; layers that only one of them has stay as they are."""
    missing, unknown = model.load_state_dict(other.state_dict(), strict=False)
    print(f"taken over; left as they were: {len(missing)}, not taken: {len(unknown)}", flush=True)


class Steps:
    """The optimizers and their shared schedule: warm-up, then a cosine over all steps of the curriculum."""

    def __init__(self, model: Model, total: int, peak: float) -> None:
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        hidden = {n: p for n, p in trained if p.ndim == 2 and "embed" not in n and "lm_head" not in n}
        others = [p for n, p in trained if n not in hidden]
        fused = fused_rows(model)
        groups = [
            {"params": [p for n, p in hidden.items() if fused.get(n) == rows], "rows": rows}
            for rows in {None, *fused.values()}
        ]
        self._parameters = [p for _, p in trained]
        self._rated: list[tuple[torch.optim.Optimizer, float]] = [
            (Muon(groups, lr=0.02, momentum=0.95), 0.02),
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
        take_over(model, type(model).from_pretrained(start, dtype=torch.float32))
    model.set_attn_implementation("sdpa")
    model.train()
    freeze_decay(name, model)
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
    model: Model,
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


def learn(model: Model, lesson: Lesson, generator: torch.Generator) -> tuple[float, float]:
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


def save(model: Model, tokenizer: Any, out: Path) -> None:
    """Write the bf16 checkpoint (the gates' A_log and dt_bias stay fp32)."""
    copy = type(model)(model.config)
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
    parser.add_argument("name", choices=[*sorted(SHAPES), GDN])
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
