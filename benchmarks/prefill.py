"""Prefill against transformers: tokens per second and peak memory growth, in one run, batch 1.

    python benchmarks/prefill.py

Each measurement is a process of its own; the two engines take turns, so that a busy machine slows both.  Writes
``benchmarks/prefill.json`` and exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from workbench import reset_peak, resident, write_result

ENGINES = ("evalgate", "transformers")
LENGTHS = (2048, 8192)
SPEED_TARGET = 4.0
"""Least times transformers' tokens per second."""
MEMORY_TARGET = 0.25
"""Most of transformers' peak memory growth."""
OUT = Path(__file__).with_suffix(".json")


def main() -> int:
    """Measure everything, write the numbers, and compare them with the targets."""
    asked = arguments()
    if asked.measure:
        print(json.dumps(measure(asked, asked.measure, asked.lengths[0])))
        return 0
    rows = [compare(asked, asked.dtype, length) for length in asked.lengths]
    met = all(row["speed_ratio"] >= SPEED_TARGET and row["memory_ratio"] <= MEMORY_TARGET for row in rows)
    targets = {"speed_ratio": SPEED_TARGET, "memory_ratio": MEMORY_TARGET}
    named = {"model": asked.model, "dtype": asked.dtype, "batch": 1}
    return write_result(asked.out, asked.threads, met=met, **named, targets=targets, rows=rows)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:hybrid")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=3, help="timed prefills in each process; the best counts")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each engine and length; the median counts")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="of both engines")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--measure", choices=ENGINES, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(asked: argparse.Namespace, dtype: str, length: int) -> dict[str, float]:
    """Both engines in one dtype and at one length, in turns; how and how often is as asked."""
    found: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    for _ in range(asked.rounds):
        for engine in ENGINES:
            command = [sys.executable, __file__, "--measure", engine, "--model", asked.model, "--lengths", str(length)]
            command += ["--dtype", dtype, "--threads", str(asked.threads), "--repeats", str(asked.repeats)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[engine].append(json.loads(done.stdout.splitlines()[-1]))
    row: dict[str, float] = {"tokens": length}
    for engine, measured in found.items():
        for name in measured[0]:
            row[f"{engine}_{name}"] = round(statistics.median(m[name] for m in measured), 1)
    row["speed_ratio"] = round(row["evalgate_tokens_per_s"] / row["transformers_tokens_per_s"], 2)
    row["memory_ratio"] = round(row["evalgate_peak_growth_mib"] / row["transformers_peak_growth_mib"], 3)
    print(
        f"{length:>6} tokens: {row['evalgate_tokens_per_s']:>9,.0f} tok/s against "
        f"{row['transformers_tokens_per_s']:>7,.0f} ({row['speed_ratio']:.1f}x), peak growth "
        f"{row['evalgate_peak_growth_mib']:,.0f} MiB against {row['transformers_peak_growth_mib']:,.0f} "
        f"({row['memory_ratio']:.2f})",
        flush=True,
    )
    return row


def measure(asked: argparse.Namespace, engine: str, length: int) -> dict[str, float]:
    """Tokens per second (best of the repeats) and growth of the resident set at its peak."""
    import torch

    torch.set_num_threads(asked.threads)
    prefill = (open_evalgate if engine == "evalgate" else open_transformers)(asked.model, asked.dtype)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, 1000, (length,), generator=generator).tolist()
    prefill(tokens[:256])
    before = resident("VmRSS")
    reset_peak()
    seconds = []
    for _ in range(asked.repeats):
        started = time.perf_counter()
        prefill(tokens)
        seconds.append(time.perf_counter() - started)
    return {"tokens_per_s": length / min(seconds), "peak_growth_mib": max(resident("VmHWM") - before, 0) / 1024}


def open_evalgate(model: str, dtype: str) -> Callable[[list[int]], object]:
    """The engine, down to the logits of the last token."""
    from evalgate.backends.models import find_model
    from evalgate.engine.llm import LLM

    llm = LLM.open(find_model(model), dtype="bf16" if dtype == "bf16" else "fp32")

    def prefill(tokens: list[int]) -> object:
        session = llm.prefill(tokens)
        logits = llm.logits([session])
        llm.release(session)
        return logits

    return prefill


def open_transformers(model: str, dtype: str) -> Callable[[list[int]], object]:
    """Its model with a cache, down to the logits of the last token."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from evalgate.backends.models import find_model

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    loaded = AutoModelForCausalLM.from_pretrained(find_model(model), dtype=kind).eval()

    @torch.inference_mode()
    def prefill(tokens: list[int]) -> object:
        return loaded(torch.tensor([tokens]), use_cache=True, logits_to_keep=1).logits

    return prefill


if __name__ == "__main__":
    raise SystemExit(main())
