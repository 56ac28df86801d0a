"""`evalgate report`: one HTML page of a run, its verdict and its baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from evalgate.cli import console

if TYPE_CHECKING:
    from evalgate.gates.verdict import Verdict


def report(
    run: console.Run,
    out: Annotated[Path, typer.Option(help="HTML file to write; one that is there is replaced.")],
    baseline: console.Baseline = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Show the verdict under this policy, NAME or NAME@1.0.0; else the latest."),
    ] = None,
    json: console.Json = False,
) -> None:
    """Write one self-contained HTML page of RUN: verdict, what changed, every cell, every lost needle."""
    written = write_report(run, out, baseline, policy)
    shown = "no verdict" if written.verdict is None else f"{written.verdict.status} under {written.verdict.policy.name}"
    if json:
        status = None if written.verdict is None else str(written.verdict.status)
        console.emit({"file": str(out), "bytes": written.size, "verdict": status})
    else:
        console.say(f"{out}  ({written.size / 1000:.0f} kB, {shown})")


class Written(NamedTuple):
    """A page that was written: its bytes and the verdict that it shows."""

    size: int
    verdict: Verdict | None


def write_report(run: Path, out: Path, baseline: Path | None, policy: str | None) -> Written:
    """Write the page of ``run`` with its latest verdict, or with the one under ``policy``."""
    from evalgate import disk
    from evalgate.gates.stored import stored_verdict
    from evalgate.reports.page import report_run
    from evalgate.store import RunFolder

    console.results_are_kept(out, run, baseline)
    folder = RunFolder.open(run)
    other = None if baseline is None else RunFolder.open(baseline)
    folder.verify()
    verdict = stored_verdict(folder, policy, other)
    page = report_run(folder, verdict, other).encode()
    disk.make_folder(out.parent)
    disk.replace(out, page)
    return Written(len(page), verdict)
