"""Does the whole program answer on the device as on the processor, and how fast does it run a suite there?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
import yaml
from gpu_clock import Clock, OutOfTimeError
from gpu_compare import Check
from gpu_inputs import Maker
from gpu_model import BASE, NARROW, WIDE, random_checkpoint
from gpu_speed import Speed
from torch import Tensor

from evalgate.backends.models import find_model
from evalgate.engine.llm import LLM, DtypeName
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.request import Request
from evalgate.runner import RunRequest, prepare, run_suite
from evalgate.tasks.suite import load_suite

KERNEL = "evalgate"
"""What stands where other comparisons and medians name a kernel."""
SAME = 1e-3
"""Log probabilities in float32, of the same sums in other orders, over thousands of tokens and all layers."""
ROUNDED = 0.15
"""The mean over thousands of positions in bfloat16, eight bits of every activation in every layer; the processor's own
bfloat16 is 0.05 off, and at the worst position more than 1."""
HAYSTACK = 16 * 1024
"""Tokens."""
SEEDS = 4


class Answers(NamedTuple):
    """What a model says of the same prompts."""

    tokens: list[int]
    """Greedy answers, one after another."""
    logprobs: Tensor
    """float32, of the tokens of all prompts but the first one of each."""


def parity(make: Maker, device: str, *, tiny: bool) -> Iterator[Check]:
    """The embedded hybrid on the device beside the processor; where ``tiny``, a random model in its place."""
    with TemporaryDirectory() as scratch:
        folder = random_checkpoint(Path(scratch) / "model", NARROW, make) if tiny else find_model(BASE)
        checkpoint = load_checkpoint(folder)
        lengths, answer = ((20,), 2) if tiny else ((65, 700, 3000), 16)
        prompts = [torch.randint(5, checkpoint.config.vocab, (n,), generator=make.host).tolist() for n in lengths]
        want = answers(checkpoint, "cpu", "fp32", prompts, answer)
        found = answers(checkpoint, device, "fp32", prompts, answer)
        rounded = answers(checkpoint, device, "bf16", prompts, answer)
    # A lost answer is as wrong as one that differs.
    other = sum(one != two for one, two in zip(found.tokens, want.tokens, strict=True))
    yield Check(KERNEL, "fp32, greedy tokens that differ", float(other), 0.0)
    error, rounding = ((got.logprobs - want.logprobs).abs() for got in (found, rounded))
    yield Check(KERNEL, "fp32, log probabilities", error.max().item(), SAME)
    yield Check(KERNEL, "bf16, mean of log probabilities", rounding.mean().item(), ROUNDED)


def answers(
    checkpoint: Checkpoint, device: str, dtype: DtypeName, prompts: Sequence[list[int]], answer: int
) -> Answers:
    """Prompts answered together, and each scored by itself."""
    most = max(map(len, prompts)) + answer
    llm = LLM(checkpoint, device=device, dtype=dtype, max_tokens=most, max_sessions=len(prompts) + 1)
    results = llm.run([Request(tokens=prompt, max_tokens=answer) for prompt in prompts])
    scored = [llm.logprobs(prompt).float().cpu() for prompt in prompts]
    return Answers([token for result in results for token in result.tokens], torch.cat(scored))


def suite_speed(make: Maker, device: str, clock: Clock, *, tiny: bool = False) -> Speed:
    """Tokens in a second of a whole run: haystacks built, prefilled, forked, questions answered, trials written."""
    length, seeds = (512, 1) if tiny else (HAYSTACK, SEEDS)
    what = f"suite of {seeds} x {length} tokens, bf16, {'2 narrow layers' if tiny else '4 layers as published'}"
    try:
        with clock.bounded(), TemporaryDirectory() as scratch:
            folder = random_checkpoint(Path(scratch) / "model", NARROW if tiny else WIDE, make)
            request = RunRequest(
                suite=str(_suite(Path(scratch) / "suite.yaml", length)),
                model=str(folder),
                device=device,
                dtype="bf16",
                seeds=seeds,
                seed_set="gpu",
            )
            bench = prepare(request)
            if not tiny:
                run_suite(bench, Path(scratch) / "first")  # compiles what is not compiled yet
            before, started = bench.backend.counters(), time.perf_counter()
            run_suite(bench, Path(scratch) / "second")
            took = time.perf_counter() - started
            tokens = worked(bench.backend.counters()) - worked(before)
    except OutOfTimeError:
        return Speed(KERNEL, what, None, note="no time was left")
    except torch.OutOfMemoryError:
        return Speed(KERNEL, what, None, note="out of memory")
    return Speed(KERNEL, what, took, tokens / took, "tokens/s")


def worked(counters: dict[str, int]) -> int:
    """Tokens that went through the model."""
    return sum(counters.get(name, 0) for name in ("prefilled_tokens", "fork_tokens", "decoded_tokens"))


def _suite(path: Path, length: int) -> Path:
    """A suite of one length and two tasks."""
    body = load_suite("smoke").model_dump(by_alias=True, mode="json", exclude_unset=True)
    fields = {"name": "gpu", "lengths": [length], "tasks": ["single"], "bands": {"all": [0, 1]}}
    path.write_text(yaml.safe_dump(body | fields), encoding="utf-8")
    return path
