"""`evalgate runs list|show|prune`: what a folder of runs holds, what one run is, and text whose time is over."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalgate.cli import console
from evalgate.cli.age import parse_age
from evalgate.errors import EvalgateError, ExitCode, InvalidRunError

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from evalgate.store import RunFolder

app = typer.Typer(help="Run folders: what they hold.", no_args_is_help=True)

DEPTH = 3
"""Folders under the one that is listed in which runs are looked for."""


@app.command("list")
def runs_list(
    folder: Annotated[Path, typer.Argument(help="Folder in which to look.")] = Path(),
    json: console.Json = False,
) -> None:
    """List every run under FOLDER, broken ones too."""
    rows = [_row(path) for path in found_runs(folder)]
    if json:
        console.emit({"folder": str(folder), "runs": rows})
        return
    if not rows:
        console.say(f"no runs in {folder}; make one with `evalgate run SUITE --model M --profile P --out RUN`")
        return
    from rich.table import Table

    table = Table("run", "status", "suite", "model", "profile", "seeds", "verdicts")
    for row in rows:
        verdicts = ", ".join(f"{name}: {status}" for name, status in row["verdicts"].items())
        words = [row[key] for key in ("path", "status", "suite", "model", "profile", "seeds")]
        table.add_row(*(str(word) for word in words), verdicts or row["fault"] or "none")
    console.say(table)


@app.command("show")
def runs_show(run: console.Run, json: console.Json = False) -> None:
    """Show one run: identity, effective settings, how many answers were right, and its verdicts."""
    from evalgate.store import RunFolder

    folder = RunFolder.open(run)
    manifest = folder.manifest()
    trials = folder.trials()
    outcomes = Counter(str(trial.outcome) for trial in trials)
    body = manifest.model_dump(mode="json", exclude={"suite_body", "cells"}) | {
        "status": folder.state(),
        "cells": len(manifest.cells),
        "trials": len(trials),
        "outcomes": dict(sorted(outcomes.items())),
        "counters": folder.counters(),
        "verdicts": _verdicts(folder),
    }
    if json:
        console.emit(body)
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in body.items():
        for at, line in enumerate(_lines(value)):
            table.add_row("" if at else name, line)
    console.say(table)


@app.command("prune")
def runs_prune(
    folder: Annotated[Path, typer.Argument(help="A run folder, or a folder of them.")] = Path(),
    older_than: Annotated[
        str | None, typer.Option(help="Remove the text of runs older than this too: 30d, 4w.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: console.Json = False,
) -> None:
    """Remove answers whose time is over; counts, verdicts and digests stay. Exits 4 where some could not be removed."""
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    limit = None if older_than is None else parse_age("--older-than", older_than)
    paths = [folder] if (folder / "manifest.json").is_file() else found_runs(folder)
    rows = [_pruned(path, now, limit, dry_run=dry_run) for path in paths]
    if json:
        console.emit({"folder": str(folder), "runs": rows})
    else:
        told = [f"{row['path']}: {row['text']}" + (f" ({row['fault']})" if row["fault"] else "") for row in rows]
        console.say(*(told or [f"no runs in {folder}"]))
        console.say(
            "Reports, JUnit files and summaries that were written elsewhere are not known here: remove them too."
        )
    raise typer.Exit(max((row["code"] for row in rows), default=ExitCode.PASS))


def _pruned(path: Path, now: datetime, limit: timedelta | None, *, dry_run: bool) -> dict[str, Any]:
    from evalgate.gates.retention import expired, has_text, remove_text
    from evalgate.store import RunFolder

    run = RunFolder(path)
    row: dict[str, Any] = {"path": str(path), "text": "kept", "fault": "", "code": ExitCode.PASS}
    try:
        if not expired(run.manifest(), now, limit):
            return row
        if not has_text(run):
            return row | {"text": "removed before"}
        if not dry_run:
            remove_text(run, now.isoformat(timespec="seconds"))
    except EvalgateError as error:
        return row | {"text": "not removed", "fault": str(error), "code": error.exit_code}
    return row | {"text": "would be removed" if dry_run else "removed"}


def found_runs(folder: Path) -> list[Path]:
    """Every run under ``folder``. Raises InvalidRunError: no folder."""
    if not folder.is_dir():
        raise InvalidRunError(f"{folder} is not a folder")
    patterns = ["*/" * depth + "manifest.json" for depth in range(1, DEPTH + 1)]
    return sorted(path.parent for pattern in patterns for path in folder.glob(pattern))


def _row(path: Path) -> dict[str, Any]:
    from evalgate.store import RunFolder

    folder = RunFolder(path)
    row: dict[str, Any] = dict.fromkeys(("status", "suite", "model", "profile", "seeds", "fault"), "")
    row |= {"path": str(path), "verdicts": {}}
    try:
        manifest = folder.manifest()
        row |= {
            "status": folder.state(),
            "suite": f"{manifest.suite.name}@{manifest.suite.version}",
            "model": manifest.model.name,
            "profile": f"{manifest.profile.name}@{manifest.profile.version}",
            "seeds": manifest.seeds,
            "verdicts": _verdicts(folder),
        }
    except EvalgateError as error:
        row |= {"status": "broken", "fault": str(error)}
    return row


def _verdicts(folder: RunFolder) -> dict[str, str]:
    """Name of the verdict -> what it says."""
    if not (folder.path / "verdicts").is_dir():
        return {}
    from evalgate.gates.verdict import Verdict

    return {name: str(Verdict.model_validate_json(content).status) for name, content in folder.verdicts().items()}


def _lines(value: object) -> list[str]:
    """One text for a plain value, one for each entry of a mapping."""
    if isinstance(value, dict):
        return [f"{name}: {inner}" for name, inner in value.items()] or ["none"]
    return [str(value)]
