"""`evalgate sweep`: which compression may be deployed; profiles from mild to aggressive, up to the first that fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalgate.cli import console
from evalgate.cli.asking import under_policy
from evalgate.cli.gate import Policy
from evalgate.cli.policy_ref import Chosen, PolicyRef, choose
from evalgate.cli.report import write_report
from evalgate.cli.run import BackendName, Dtype, Model, SeedSet, Suite, execute
from evalgate.errors import RefusedError

if TYPE_CHECKING:
    from rich.table import Table

    from evalgate.gates.profile import Profile
    from evalgate.gates.sweep import Rate, Sweep
    from evalgate.gates.verdict import Verdict
    from evalgate.runner import Looks, RunRequest

BAR = 20
"""Columns of a full bar of the curve."""


def sweep(
    suite: Suite,
    model: Model,
    profiles: Annotated[str, typer.Option(help="Profiles from mild to aggressive, with commas between them.")],
    policy: Policy,
    out: Annotated[Path, typer.Option(help="Folder for a run folder and a report of each profile, and sweep.html.")],
    policy_ref: PolicyRef = None,
    backend: BackendName = "native",
    baseline: console.Baseline = None,
    seed_set: SeedSet = "main",
    dtype: Dtype = "fp32",
    json: console.Json = False,
) -> None:
    """Find the most aggressive profile that passes. Exits 0 if there is one, else as the mildest one's verdict."""
    from evalgate import disk
    from evalgate.gates.sweep import Rate, conclude, goes_on
    from evalgate.reports.html import render_sweep
    from evalgate.reports.sweep_view import sweep_view
    from evalgate.runner import Looks
    from evalgate.store import RunFolder

    chosen = choose(policy, policy_ref)
    rules = chosen.policy
    other = None if baseline is None else RunFolder.open(baseline)
    if other is not None:
        other.verify()
    looks = Looks(rules, other) if len(rules.looks) > 1 else None
    rates: list[Rate] = []
    waiting = _profiles(profiles)
    while waiting and (not rates or goes_on(rates[-1])):
        name, profile = waiting.pop(0)
        request = under_policy(rules, suite, model, profile=name, backend=backend, dtype=dtype, seed_set=seed_set)
        run = out / profile.ref
        verdict = _judge(request, looks, run, chosen, baseline)
        write_report(run, run / "report.html", baseline, rules.ref)
        rates.append(Rate(verdict, RunFolder.open(run).manifest().engine.bytes_per_session.get("total")))
    found = conclude(rates, [profile.ref for _, profile in waiting])
    disk.replace(out / "sweep.html", render_sweep(sweep_view(found)).encode())
    if json:
        console.emit(_body(found, out))
    else:
        console.say(_table(found), *_closing(found, out))
    raise typer.Exit(found.exit_code)


def _profiles(names: str) -> list[tuple[str, Profile]]:
    """Load every profile before the first token; two of one name and version would share a folder."""
    from evalgate.gates.profile import load_profile

    found = [(name.strip(), load_profile(name.strip())) for name in names.split(",")]
    twice = {profile.ref for _, profile in found if sum(profile.ref == other.ref for _, other in found) > 1}
    if twice:
        raise RefusedError(f"--profiles: {min(twice)} is given twice; name each profile once, mild to aggressive")
    return found


def _judge(request: RunRequest, looks: Looks | None, run: Path, chosen: Chosen, baseline: Path | None) -> Verdict:
    from evalgate.gates.judge_run import gate_run
    from evalgate.store import RunFolder

    execute(request, run, looks=looks)
    other = None if baseline is None else RunFolder.open(baseline)
    return gate_run(RunFolder.open(run), chosen.policy, other, chosen.source)


def _table(found: Sweep) -> Table:
    """Recall of the weakest cell against bytes: one line a rate, mild to aggressive."""
    from rich.table import Table

    table = Table("profile", "bytes/session", "weakest cell", "recall", "", "verdict")
    for rate in found.rates:
        cell, size = rate.weakest, rate.bytes_per_session
        share = 0.0 if cell is None else cell.k / cell.n
        table.add_row(
            rate.profile,
            "-" if size is None else f"{size:,}",
            "-" if cell is None else str(cell.cell),
            "-" if cell is None else f"{cell.k}/{cell.n}",
            "█" * round(BAR * share),
            str(rate.verdict.status),
        )
    return table


def _closing(found: Sweep, out: Path) -> list[str]:
    from evalgate.reports.sweep_view import attempts

    last = found.rates[-1]
    lines = [] if last.verdict.status == "PASS" else [f"{last.profile}: {last.verdict.reason}"]
    lines += [f"{notice.code}: {notice.detail}" for notice in found.notices]
    if found.untried:
        lines.append(f"not tried, as {last.profile} did not pass: {', '.join(found.untried)}")
    reports = f"recall against bytes: {out}/sweep.html; reports: {out}/PROFILE/report.html"
    return [*lines, reports, attempts(found), f"deploy {found.deploy}" if found.deploy else "deploy none of them"]


def _body(found: Sweep, out: Path) -> dict[str, object]:
    return {
        "deploy": found.deploy,
        "exit_code": int(found.exit_code),
        "attempts": len(found.rates),
        "untried": found.untried,
        "notices": [notice.model_dump(mode="json") for notice in found.notices],
        "rates": [
            {
                "profile": rate.profile,
                "run": str(out / rate.profile),
                "bytes_per_session": rate.bytes_per_session,
                "weakest": None if rate.weakest is None else rate.weakest.model_dump(mode="json"),
                "verdict": rate.verdict.model_dump(mode="json"),
            }
            for rate in found.rates
        ],
    }
