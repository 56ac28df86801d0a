"""`evalgate demo`: the main job on the embedded models; one compression passes, others block, each for its reason."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalgate.cli import console
from evalgate.cli.report import write_report
from evalgate.cli.run import execute
from evalgate.errors import ExitCode

if TYPE_CHECKING:
    from rich.table import Table

    from evalgate.gates.verdict import Verdict

SUITE = "demo@1.0.0"
POLICY = "demo@1.0.0"
SEED_SET = "demo"
"""Fixed before the first demo was run; never changed for a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One candidate: what is run, what it is compared with, and what the gate should say."""

    name: str
    model: str
    profile: str
    baseline: str | None
    expected: str
    blocked_task: str | None = None
    """Where BLOCK is expected: the task that is lost ..."""
    blocked_band: str | None = None
    """... or the band; every cell elsewhere must pass."""


STEPS = (
    Step(name="hybrid", model="builtin:hybrid", profile="full", baseline=None, expected="PASS"),
    Step(name="hybrid-int8", model="builtin:hybrid", profile="state-int8", baseline="hybrid", expected="PASS"),
    Step(name="attention", model="builtin:mostly-attention", profile="full", baseline=None, expected="PASS"),
    Step(
        name="attention-keep-90",
        model="builtin:mostly-attention",
        profile="kv-keep-90",
        baseline="attention",
        expected="BLOCK",
        blocked_band="middle",
    ),
    Step(
        name="hybrid-rank-7",
        model="builtin:hybrid",
        profile="state-rank-7",
        baseline="hybrid",
        expected="BLOCK",
        blocked_task="multikey@8",
    ),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A step and its verdict."""

    step: Step
    verdict: Verdict

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the expected one, with every loss where it is expected and none elsewhere."""
        step = self.step
        if str(self.verdict.status) != step.expected:
            return False
        elsewhere = [
            cell
            for cell in self.verdict.cells
            if step.blocked_task != cell.cell.task and step.blocked_band != cell.cell.band
        ]
        return all(str(cell.status) == "PASS" for cell in elsewhere)

    @property
    def mean(self) -> float:
        """Mean recall over all cells: what a gate on the average would see."""
        return sum(cell.k for cell in self.verdict.cells) / sum(cell.n for cell in self.verdict.cells)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the demo's runs and reports.")] = Path("evalgate-demo"),
    json: console.Json = False,
) -> None:
    """Run, gate and report on the embedded models. Exits 0 when every verdict is as expected."""
    started = time.monotonic()
    shown = [_take(step, out, f"candidate {i} of {len(STEPS)}: ") for i, step in enumerate(STEPS, 1)]
    good = all(one.as_expected for one in shown)
    if json:
        console.emit({"as_expected": good, "steps": [_body(one, out) for one in shown]})
    else:
        console.say(_table(shown), *_closing(shown, out, time.monotonic() - started))
    raise typer.Exit(ExitCode.PASS if good else ExitCode.ERROR)


def _take(step: Step, out: Path, title: str) -> Shown:
    from evalgate.gates.judge_run import gate_run
    from evalgate.gates.plan import seeds_needed
    from evalgate.gates.policy import load_policy
    from evalgate.runner import RunRequest
    from evalgate.store import RunFolder

    policy = load_policy(POLICY)
    request = RunRequest(
        suite=SUITE, model=step.model, profile=step.profile, seeds=seeds_needed(policy), seed_set=SEED_SET
    )
    run = out / step.name
    execute(request, run, title)
    baseline = None if step.baseline is None else out / step.baseline
    verdict = gate_run(RunFolder.open(run), policy, None if baseline is None else RunFolder.open(baseline))
    write_report(run, run / "report.html", baseline, POLICY)
    return Shown(step, verdict)


def _table(shown: list[Shown]) -> Table:
    from rich.table import Table

    table = Table(title="evalgate demo: right of 100 in the front / middle / back third, at 1,024 tokens")
    for heading in ("candidate", "compared with", "single", "multikey@8", "mean", "verdict"):
        table.add_column(heading)
    for one in shown:
        verdict = str(one.verdict.status) + ("" if one.as_expected else f" (expected {one.step.expected})")
        table.add_row(
            f"{one.step.model.removeprefix('builtin:')} at {one.step.profile}",
            one.step.baseline or "-",
            _bands(one.verdict, "single"),
            _bands(one.verdict, "multikey@8"),
            f"{one.mean:.1%}",
            verdict,
        )
    return table


def _bands(verdict: Verdict, task: str) -> str:
    return " / ".join(str(cell.k) for cell in verdict.cells if cell.cell.task == task)


def _closing(shown: list[Shown], out: Path, seconds: float) -> list[str]:
    lines = [f"{one.step.name}: {one.verdict.reason}" for one in shown]
    lines.append(f"took {seconds:.0f} s; open {out / shown[-2].step.name / 'report.html'} to see why the middle blocks")
    lines.append("all reports: " + ", ".join(str(out / one.step.name / "report.html") for one in shown))
    lines.append("`evalgate gate` exits with the verdict: 0 PASS, 1 BLOCK, 3 INCONCLUSIVE, 4 ERROR, 5 TAMPERED;")
    lines.append("2 means refused before the first token. This demo exits 0 when every verdict is as expected.")
    return lines


def _body(one: Shown, out: Path) -> dict[str, object]:
    return {
        "name": one.step.name,
        "expected": one.step.expected,
        "as_expected": one.as_expected,
        "verdict": one.verdict.model_dump(mode="json"),
        "report": str(out / one.step.name / "report.html"),
    }
