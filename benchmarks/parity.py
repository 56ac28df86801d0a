"""The same trials by every way to one model, compared one by one: prompts, texts, outcomes.

    python benchmarks/parity.py [--seeds 5]

`builtin:hybrid` by the engine, by transformers (forked, and every prompt whole), through `transformers serve` and
through lm-eval's `hf`; suite `needle` at two lengths.  Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from workbench import write_result

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from local_server import serving

from evalgate.backends.models import find_model
from evalgate.records import Trial
from evalgate.runner import LoadOptions, RunRequest, ServerOptions, prepare, run_suite
from evalgate.tasks.suite import load_suite

MODEL = "builtin:hybrid"
LENGTHS = [1024, 2048]


def ask(suite: Path, seeds: int, out: Path, model: str = MODEL, **how: Any) -> list[Trial]:
    """One run's trials."""
    asked = RunRequest(suite=str(suite), model=model, seeds=seeds, seed_set="parity", answers="keep", **how)
    return run_suite(prepare(asked), out).trials()


def compared(ours: list[Trial], theirs: list[Trial]) -> dict[str, Any]:
    """Counts, and every trial that differs."""
    other = {(t.seed, t.task, t.length, t.band): t for t in theirs}
    pairs = [(t, other[t.seed, t.task, t.length, t.band]) for t in ours]
    apart = [
        {"trial": a.trial_id, "cell": str(a.cell), "expected": a.expected, "engine": a.answer, "there": b.answer}
        for a, b in pairs
        if (a.answer, a.outcome) != (b.answer, b.outcome)
    ]
    return {
        "trials": len(pairs),
        "same_prompt": sum(a.prompt_sha256 == b.prompt_sha256 for a, b in pairs),
        "same_text": sum(a.answer == b.answer for a, b in pairs),
        "same_outcome": sum(a.outcome == b.outcome for a, b in pairs),
        "differences": apart,
    }


def runs(work: Path, seeds: int) -> Mapping[str, list[Trial]]:
    """By every way."""
    folder = find_model(MODEL)
    body = load_suite("needle").model_dump(mode="json", by_alias=True, exclude_unset=True)
    suite = work / "suite.yaml"
    suite.write_text(yaml.safe_dump(body | {"name": "parity", "lengths": LENGTHS}))
    found = {"engine": ask(suite, seeds, work / "engine")}
    found["transformers, forked"] = ask(suite, seeds, work / "hf", backend="hf")
    load = LoadOptions(lm="hf", lm_args={"device": "cpu", "dtype": "float32", "max_length": "4096"})
    found["lm-eval hf"] = ask(suite, seeds, work / "lm-eval", backend="lm-eval", load=load)
    program = Path(sys.executable).with_name("transformers")
    command = [str(program), "serve", str(folder), "--device", "cpu", "--dtype", "float32"]
    with serving(command, {"HF_HUB_OFFLINE": "1"}, work / "log") as address:
        server = ServerOptions(base_url=address, tokenizer=str(folder))
        found["transformers serve"] = ask(
            suite, seeds, work / "served", model=str(folder), backend="openai", server=server
        )
    return found


def main() -> int:
    """Ask, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = runs(Path(work), options.seeds)
    table = {name: compared(found["engine"], trials) for name, trials in found.items() if name != "engine"}
    for name, row in table.items():
        print(name, json.dumps({key: value for key, value in row.items() if key != "differences"}))
    met = all(row["same_prompt"] == row["same_outcome"] == row["trials"] for row in table.values())
    return write_result(options.out, 1, met=met, model=MODEL, suite="needle", lengths=LENGTHS, ways=table)


if __name__ == "__main__":
    sys.exit(main())
