"""Which family of tasks sees which loss first: recall of each family under each profile, and ``load`` against its k.

    python benchmarks/families.py --work DIR

Every family is asked alone in its haystacks, the same ones under every profile, so that two profiles differ in nothing
but the profile.  Writes ``benchmarks/families.md`` with the tables and ``benchmarks/families.json`` with every count.
A run that lies in DIR already is taken as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from workbench import write_result

from evalgate.records import Cell, Outcome
from evalgate.runner import RunRequest, prepare, run_suite
from evalgate.stats import mcnemar

MODELS = ("builtin:hybrid", "builtin:hybrid-small-state")
LADDERS: Mapping[str, tuple[str, ...]] = {
    "state in fewer bits": ("state-int8", "state-int4"),
    "state of lower rank": ("state-rank-8", "state-rank-7", "state-rank-4", "state-rank-2", "state-rank-1"),
    "fewer keys and values": ("kv-keep-75", "kv-keep-50"),
}
"""Each from mild to harsh."""
PROFILES = ("full", *(profile for ladder in LADDERS.values() for profile in ladder))
FAMILIES = ("single", "multikey@8", "load@24", "distance@8", "overwrite@3", "interference@6", "absent@6")
LOADS = tuple(f"load@{k}" for k in (8, 16, 24, 32, 40, 48))
LOAD_PROFILES = ("full", "state-int8", "state-int4", "state-rank-8", "state-rank-4", "state-rank-2")
BANDS = ("front", "middle", "back")
SEEN = 0.01
"""A loss is seen where so few or fewer of equal profiles would show as many answers lost, against those regained."""

Right = dict[Cell, list[bool]]
"""Cell -> whether each seed's answer was right, by seed."""


def suite(name: str, tasks: Sequence[str], length: int, work: Path) -> str:
    """A suite file: every task alone in its haystacks at one length."""
    body = {
        "schema_version": 1,
        "name": name,
        "version": "1.0.0",
        "lengths": [length],
        "tasks": list(tasks),
        "bands": {"front": [0, 0.3333], "middle": [0.3333, 0.6667], "back": [0.6667, 1]},
        "arms": ["default"],
        "haystack": {"source": "grammar", "register": "report", "language": "en", "data_class": "public"},
        "streams": {"mode": "per-task", "density_cap": 0.5},
        "decoding": {"max_tokens": 24, "temperature": 0},
    }
    path = work / f"{name}.yaml"
    path.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return str(path)


def measure(model: str, profile: str, path: str, seeds: int, work: Path) -> Right:
    """The marks of one model under one profile."""
    request = RunRequest(suite=path, model=model, profile=profile, seeds=seeds, seed_set="families")
    folder = work / f"{Path(path).stem}-{model.rpartition(':')[2]}-{profile}"
    right: Right = {}
    for trial in sorted(run_suite(prepare(request), folder).trials(), key=lambda trial: trial.seed):
        right.setdefault(trial.cell, []).append(trial.outcome is Outcome.CORRECT)
    print(f"{model} {profile}: {sum(map(sum, right.values()))} right", flush=True)
    return right


def of_task(right: Right, task: str) -> dict[str, list[bool]]:
    """Band -> marks of one task."""
    return {cell.band: marks for cell, marks in right.items() if cell.task == task}


def shown(right: Right, task: str) -> str:
    """Right answers in front / middle / back; one number for a family that is asked of the whole."""
    bands = of_task(right, task)
    return " / ".join(str(sum(bands[band])) for band in (*BANDS, "all") if band in bands)


def sees(full: Right, under: Right, task: str) -> bool:
    """Whether more answers were lost than chance would lose, by the exact McNemar test over the three bands."""
    pairs = [
        pair
        for band, marks in of_task(full, task).items()
        for pair in zip(marks, of_task(under, task)[band], strict=True)
    ]
    lost = sum(before and not after for before, after in pairs)
    regained = sum(after and not before for before, after in pairs)
    return lost > regained and mcnemar(lost, regained) <= SEEN


def grid(found: Mapping[str, Right], tasks: Sequence[str], seeds: int) -> Iterator[str]:
    """A row per task, a column per profile."""
    yield f"| right of {seeds} | " + " | ".join(found) + " |"
    yield "|---" * (len(found) + 1) + "|"
    for task in tasks:
        yield f"| `{task}` | " + " | ".join(shown(right, task) for right in found.values()) + " |"


def firsts(found: Mapping[str, Right]) -> Iterator[str]:
    """For each ladder, the mildest profile at which each family sees the loss."""
    yield "| family | " + " | ".join(LADDERS) + " |"
    yield "|---" * (len(LADDERS) + 1) + "|"
    for task in FAMILIES:
        cells = []
        for ladder in LADDERS.values():
            seen = [profile for profile in ladder if sees(found["full"], found[profile], task)]
            cells.append(seen[0] if seen else "-")
        yield f"| `{task}` | " + " | ".join(cells) + " |"


def counts(found: Mapping[str, Right]) -> dict[str, dict[str, str]]:
    """Profile -> task -> right in front / middle / back."""
    tasks = {profile: sorted({cell.task for cell in right}) for profile, right in found.items()}
    return {profile: {task: shown(right, task) for task in tasks[profile]} for profile, right in found.items()}


def main() -> int:
    """Measure, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--load-length", type=int, default=2048)
    parser.add_argument("--model", action="append", dest="models")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    paths = suite("families", FAMILIES, asked.length, asked.work), suite("load", LOADS, asked.load_length, asked.work)
    lines, body = ["# Families against profiles", ""], {}
    for model in asked.models or MODELS:
        families = {p: measure(model, p, paths[0], asked.seeds, asked.work) for p in PROFILES}
        loads = {p: measure(model, p, paths[1], asked.seeds, asked.work) for p in LOAD_PROFILES}
        body[model] = {"families": counts(families), "load": counts(loads)}
        lines += [f"## {model}", "", f"Right in front / middle / back at {asked.length:,} tokens.", ""]
        lines += [*grid(families, FAMILIES, asked.seeds), "", "The mildest profile at which each family loses", ""]
        lines += [*firsts(families), "", f"`load` at {asked.load_length:,} tokens.", ""]
        lines += [*grid(loads, LOADS, asked.seeds), ""]
    asked.out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return write_result(asked.out.with_suffix(".json"), 1, met=True, seeds=asked.seeds, found=body)


if __name__ == "__main__":
    raise SystemExit(main())
