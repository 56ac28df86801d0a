"""`evalgate audit`: whether the gate says what it must, where the truth is known."""

from __future__ import annotations

import json as codec
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalgate.cli import console
from evalgate.cli.asking import under_policy
from evalgate.cli.gate import Policy
from evalgate.cli.run import BackendName, Dtype, Model, ProfileName, SeedSet, Suite, progress
from evalgate.errors import EvalgateError, ExitCode, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalgate.gates.audit import Control
    from evalgate.gates.policy import Policy as Rules
    from evalgate.gates.verdict import Verdict
    from evalgate.runner import Bench, RunRequest
    from evalgate.store import RunFolder


def audit(
    suite: Suite,
    model: Model,
    policy: Policy,
    out: Annotated[Path, typer.Option(help="Folder for the runs of the controls.")],
    profile: ProfileName = "full",
    backend: BackendName = "native",
    repeats: Annotated[
        int, typer.Option(help="A/A gates: the model against itself, each on haystacks of its own; 0 leaves them out.")
    ] = 4,
    seed_set: SeedSet = "audit",
    dtype: Dtype = "fp32",
    json: console.Json = False,
) -> None:
    """Try the gate on what must pass, what must block and what must be an error. Exits 0 if it says so, else 4."""
    from evalgate import disk
    from evalgate.gates.policy import load_policy

    rules = load_policy(policy)
    if suite.endswith(".parquet"):
        raise RefusedError(f"{suite}: an audit builds haystacks of its own; name the suite that it was compiled of")
    request = under_policy(rules, suite, model, profile=profile, backend=backend, dtype=dtype, seed_set=seed_set)
    found = list(_controls(request, rules, out, repeats))
    good = all(control.met for control in found)
    body = {"as_expected": good, "policy": rules.ref, "controls": [control._asdict() for control in found]}
    disk.replace(out / "audit.json", (codec.dumps(body, indent=2, ensure_ascii=False) + "\n").encode())
    if json:
        console.emit(body)
    else:
        lines = [f"{'ok' if c.met else 'NOT MET'}: {c.name}: expected {c.expected}, found {c.seen}" for c in found]
        console.say(*lines, f"runs: {out}")
    raise typer.Exit(ExitCode.PASS if good else ExitCode.ERROR)


def _controls(request: RunRequest, rules: Rules, out: Path, repeats: int) -> Iterator[Control]:
    from evalgate.gates import audit as gate
    from evalgate.runner import prepare
    from evalgate.runner.controls import absent, scripted

    yield gate.judge_wrong_model(_refusal(replace(request, model=f"{request.model}-that-is-not-there")))
    bench, bare = prepare(request), gate.without_floor(rules)
    yield gate.judge_oracle(_peek(_run(scripted(bench, "oracle"), out / "oracle"), bare), rules)
    yield gate.judge_shuffled(_peek(_run(scripted(bench, "shuffled"), out / "shuffled"), bare))
    trials = _run(absent(bench), out / "absent").trials()
    yield gate.judge_absent(sum(trial.outcome == "correct" for trial in trials), len(trials))
    verdicts = []
    for i in range(repeats):
        again = prepare(replace(request, seed_set=f"{request.seed_set}-{i}"))
        first = _run(again, out / f"same-{i}-a")
        second = _run(again, out / f"same-{i}-b")
        verdicts.append(_peek(second, bare, None if rules.baseline.use == "none" else first))
    if verdicts:
        yield gate.judge_same(verdicts, rules)


def _refusal(request: RunRequest) -> Exception | None:
    from evalgate.runner import prepare

    try:
        prepare(request)
    except EvalgateError as error:
        return error
    return None


def _run(bench: Bench, out: Path) -> RunFolder:
    from evalgate.runner import run_suite

    with progress(out.name) as report:
        return run_suite(bench, out, report)


def _peek(folder: RunFolder, rules: Rules, baseline: RunFolder | None = None) -> Verdict:
    from evalgate.gates.judge_run import peek

    folder.verify()
    return peek(folder, rules, baseline)
