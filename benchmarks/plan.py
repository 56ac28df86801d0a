"""What ``run --plan`` predicts, beside what the run then took.

    python benchmarks/plan.py

Tokens are upper bounds, so a run must stay within them; time is an estimate from a few haystacks.  Writes
``benchmarks/plan.json`` and exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from workbench import write_result

from evalgate.runner import RunRequest, make_plan, prepare, probe, run_suite

RUNS = (("smoke", "full", 20), ("needle", "full", 6), ("needle", "state-int8", 6), ("state", "full", 2))
"""Suite, profile, seeds."""
TOKENS_TARGET = 0.75
"""Least share of the bound that a run takes in: a bound far above it would say little."""
TIME_TARGET = 1.5
"""Most that estimate and time may differ by, as a factor."""
OUT = Path(__file__).with_suffix(".json")


def compared(suite: str, profile: str, seeds: int) -> dict[str, float | str]:
    """One run beside its plan."""
    request = RunRequest(suite=suite, model="builtin:hybrid", profile=profile, seeds=seeds, seed_set="plan")
    bench = prepare(request)
    plan = make_plan(bench)
    plan = replace(plan, speed=probe(bench, plan))
    before = bench.backend.counters()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run_suite(bench, Path(folder) / "run")
    seconds = time.perf_counter() - started
    counters = bench.backend.counters()
    taken = {name: counters[name] - before.get(name, 0) for name in ("prefilled_tokens", "fork_tokens", "forks")}
    tokens = taken["prefilled_tokens"] + taken["fork_tokens"]
    assert plan.seconds is not None
    return {
        "suite": suite,
        "profile": profile,
        "seeds": seeds,
        "planned_tokens": plan.tokens,
        "tokens": tokens,
        "planned_forks": plan.forks_per_seed * seeds,
        "forks": taken["forks"],
        "planned_s": round(plan.seconds, 2),
        "seconds": round(seconds, 2),
        "of_bound": round(tokens / plan.tokens, 3),
        "time_ratio": round(seconds / plan.seconds, 3),
    }


def main() -> int:
    """Compare every run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    found = []
    for run in RUNS:
        found.append(compared(*run))
        print(found[-1], flush=True)
    met = all(
        TOKENS_TARGET <= float(row["of_bound"]) <= 1
        and row["forks"] == row["planned_forks"]
        and 1 / TIME_TARGET <= float(row["time_ratio"]) <= TIME_TARGET
        for row in found
    )
    targets = {"of_bound": TOKENS_TARGET, "time": TIME_TARGET}
    return write_result(asked.out, asked.threads, met=met, targets=targets, found=found)


if __name__ == "__main__":
    raise SystemExit(main())
