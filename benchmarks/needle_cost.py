"""What suite ``needle`` costs by evalgate, and the same trials one by one through lm-eval's ``hf`` model.

    python benchmarks/needle_cost.py

evalgate runs every haystack; lm-eval answers a sample of the trials at each length, whose mean time is multiplied by
the number of trials.  Both use the same checkpoint, float32 and the same threads, one after the other in one run.
Writes ``benchmarks/needle_cost.json`` and exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from workbench import write_result

from evalgate.backends.models import find_model
from evalgate.runner import RunRequest, make_plan, prepare, run_suite
from evalgate.runner.request import Bench

BOUND_TARGET = 1.1
"""Most prefilled tokens, as a multiple of the bound that ``--plan`` prints."""
TOKENS_TARGET, TIME_TARGET = 6.0, 12.0
"""Least times fewer tokens, and less wall time, than one by one."""
OUT = Path(__file__).with_suffix(".json")


def main() -> int:
    """Run both, write the numbers, and compare them with the targets."""
    asked = arguments()
    torch.set_num_threads(asked.threads)
    request = RunRequest(suite=asked.suite, model=asked.model, profile="full", seeds=asked.seeds, seed_set="cost")
    bench = prepare(request)
    row = by_evalgate(bench) | by_lm_eval(bench, asked.sample, asked.threads)
    row["bound_ratio"] = row["evalgate_tokens"] / row["bound_tokens"]
    row["token_ratio"] = row["lm_eval_tokens"] / row["evalgate_tokens"]
    row["time_ratio"] = row["lm_eval_s"] / row["evalgate_s"]
    met = (
        row["bound_ratio"] <= BOUND_TARGET and row["token_ratio"] >= TOKENS_TARGET and row["time_ratio"] >= TIME_TARGET
    )
    found = {name: round(value, 3) for name, value in row.items()}
    print(json.dumps(found, indent=2))
    targets = {"bound_ratio": BOUND_TARGET, "token_ratio": TOKENS_TARGET, "time_ratio": TIME_TARGET}
    named = {"suite": bench.suite.ref, "model": asked.model, "seeds": asked.seeds, "lm_eval_per_length": asked.sample}
    return write_result(asked.out, asked.threads, met=met, **named, targets=targets, found=found)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:hybrid")
    parser.add_argument("--suite", default="needle")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--sample", type=int, default=3, help="trials of each length that lm-eval answers")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


def by_evalgate(bench: Bench) -> dict[str, float]:
    """The whole run: wall seconds, tokens taken in, and the plan's bound on them."""
    plan = make_plan(bench)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        run = run_suite(bench, Path(folder) / "run")
        seconds = time.perf_counter() - started
        counters = run.counters()
    return {
        "evalgate_s": seconds,
        "evalgate_tokens": counters["prefilled_tokens"] + counters["fork_tokens"],
        "bound_tokens": plan.tokens,
    }


def by_lm_eval(bench: Bench, sample: int, threads: int) -> dict[str, float]:
    """The first trials of each length, timed; tokens and seconds of all trials."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = find_model(bench.request.model)
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    harness = HFLM(
        pretrained=model, tokenizer=AutoTokenizer.from_pretrained(folder), backend="causal", device="cpu", batch_size=1
    )
    harness.add_bos_token = False  # the prompt's text has it already
    by_length: dict[int, list[list[int]]] = {length: [] for length in bench.suite.lengths}
    for seed in range(sample):
        for stream in bench.source.streams:
            haystack = bench.source.build(seed, stream)
            for probe in haystack.probes:
                by_length[probe.cell.length].append(haystack.tokens[: haystack.ends[probe.cell.length]] + probe.tail)
    trials = len(bench.suite.cells()) // len(bench.suite.lengths) * bench.request.seeds
    found = {"lm_eval_s": 0.0, "lm_eval_tokens": 0.0}
    answer(harness, by_length[bench.suite.lengths[0]][:1], bench)  # warms up
    for length, prompts in by_length.items():
        chosen = prompts[:: max(1, len(prompts) // sample)][:sample]
        started = time.perf_counter()
        answer(harness, chosen, bench)
        each = (time.perf_counter() - started) / len(chosen)
        found[f"lm_eval_s_each_{length}"] = each
        found["lm_eval_s"] += each * trials
        found["lm_eval_tokens"] += trials * sum(map(len, prompts)) / len(prompts)
    return found


def answer(harness: Any, prompts: list[list[int]], bench: Bench) -> None:
    """Ask lm-eval's model for greedy continuations, as a generate_until task does."""
    from lm_eval.api.instance import Instance

    tokenizer = harness.tokenizer
    settings = {"until": [tokenizer.eos_token], "max_gen_toks": bench.suite.decoding.max_tokens, "do_sample": False}
    asked = [Instance("generate_until", {}, (tokenizer.decode(ids), settings), i) for i, ids in enumerate(prompts)]
    assert len(harness.generate_until(asked, disable_tqdm=True)) == len(prompts)


if __name__ == "__main__":
    raise SystemExit(main())
