"""Measure what the embedded models can do on the suites' own text, with exact intervals, as Markdown.

    python tools/measure_builtin.py --work DIR [--only reach] > reach.md

Seed sets of its own (``reach``, ``reach-demo``): neither training nor any demo draws from them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import yaml

from evalgate.records import Cell, Outcome, Trial
from evalgate.runner import RunRequest, prepare, run_suite
from evalgate.stats import clopper_pearson
from evalgate.tasks.suite import load_suite


class Measure(NamedTuple):
    """One run: a suite (and what to change in it) on a model under a profile."""

    name: str
    model: str
    suite: str
    profile: str
    seeds: int
    seed_set: str
    lengths: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()
    backend: str = "native"


LADDER = (
    "state-bf16",
    "state-int8",
    "state-int8-feedback",
    "state-int4",
    "state-int4-feedback",
    "state-rank-8",
    "state-rank-7",
    "state-rank-4",
    "state-rank-2",
    "state-rank-1",
)
KV = ("kv-bf16", "kv-int8", "kv-fp8", "kv-keep-90", "kv-keep-75", "kv-keep-50", "kv-window-512")

MEASURES = {
    "reach": [
        Measure("hybrid", "builtin:hybrid", "needle", "full", 200, "reach"),
        Measure("hybrid-16k", "builtin:hybrid", "needle", "full", 200, "reach", (16384,), ("single",)),
        Measure("mostly-attention", "builtin:mostly-attention", "retrieval", "full", 200, "reach"),
    ],
    "alone": [
        Measure(
            f"hybrid-{task.partition('@')[0]}-alone", "builtin:hybrid", "needle", "full", 200, "reach", (8192,), (task,)
        )
        for task in ("single", "multikey@8", "overwrite@3")
    ],
    "gdn": [Measure("gdn-hybrid", "builtin:gdn-hybrid", "needle", "full", 40, "reach", backend="hf")],
    "demo": [
        Measure("demo-hybrid", "builtin:hybrid", "demo", "full", 400, "reach-demo"),
        Measure("demo-hybrid-int8", "builtin:hybrid", "demo", "state-int8", 400, "reach-demo"),
        Measure("demo-attention", "builtin:mostly-attention", "demo", "full", 400, "reach-demo"),
    ],
    "long": [
        Measure("hybrid-64k", "builtin:hybrid", "needle", "full", 20, "reach", (65536,)),
        Measure("hybrid-256k", "builtin:hybrid", "needle", "full", 3, "reach", (262144,)),
    ],
    "profiles": [
        *(Measure(f"hybrid-{p}", "builtin:hybrid", "smoke", p, 50, "reach") for p in (*LADDER, *KV)),
        *(Measure(f"attention-{p}", "builtin:mostly-attention", "demo", p, 50, "reach") for p in KV),
    ],
}


def run(measure: Measure, work: Path) -> list[Trial]:
    """The trials of one measure; a run that is there already is taken as it is."""
    suite = measure.suite
    if measure.lengths:
        body = load_suite(suite).model_dump(mode="json", by_alias=True, exclude_unset=True)
        body |= {"name": measure.name, "lengths": list(measure.lengths)}
        body |= {"tasks": list(measure.tasks)} if measure.tasks else {}
        path = work / f"{measure.name}.yaml"
        path.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
        suite = str(path)
    request = RunRequest(
        suite=suite,
        model=measure.model,
        profile=measure.profile,
        backend=measure.backend,
        seeds=measure.seeds,
        seed_set=measure.seed_set,
    )
    return run_suite(prepare(request), work / measure.name).trials()


def rows(measure: Measure, trials: list[Trial]) -> Iterator[str]:
    """One Markdown row for each task and length: k/n and the 95% interval per band."""
    right: dict[Cell, list[bool]] = {}
    for trial in trials:
        right.setdefault(trial.cell, []).append(trial.outcome is Outcome.CORRECT)
    for task, length in sorted({(cell.task, cell.length) for cell in right}):
        shown = []
        for band in ("front", "middle", "back"):
            marks = right[Cell(task, length, band)]
            interval = clopper_pearson(sum(marks), len(marks), 0.05)
            shown.append(f"{sum(marks)}/{len(marks)} ({interval.lower:.1%} - {interval.upper:.1%})")
        yield f"| {measure.model} | {measure.profile} | {task} | {length} | {' | '.join(shown)} |"


def main() -> None:
    """Run the chosen measures and print their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", choices=sorted(MEASURES), action="append")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    print(f"Measured {datetime.now(UTC):%Y-%m-%d}.\n")
    print("| model | profile | task | length | front | middle | back |\n|---|---|---|---|---|---|---|")
    started = time.monotonic()
    for group in options.only or MEASURES:
        for measure in MEASURES[group]:
            for row in rows(measure, run(measure, options.work)):
                print(row, flush=True)
    print(f"\n{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
