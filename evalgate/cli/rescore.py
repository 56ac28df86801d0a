"""`evalgate rescore`: stored answers judged by the scorer of today."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalgate.cli import console

SHOWN = 20
"""Flips that are printed; --json has all."""


def rescore(
    run: console.Run,
    out: Annotated[
        Path | None, typer.Option(help="Write the run with its new outcomes here; without it, flips are only listed.")
    ] = None,
    json: console.Json = False,
) -> None:
    """Judge the answers of RUN by the scorer of today, and list what flips; no model is asked."""
    from evalgate.runner import rescore as rescored
    from evalgate.runner import write_rescored
    from evalgate.store import RunFolder

    folder = RunFolder.open(run)
    made = rescored(folder)
    if out is not None:
        write_rescored(folder, made, out)
    if json:
        body = {"run": str(run), "out": None if out is None else str(out), "before": made.before, "after": made.after}
        flips = [flip.model_dump() for flip in made.flips]
        console.emit(body | {"trials": len(made.trials), "left": made.left, "flips": flips})
        return
    console.say(f"{run}: {len(made.trials)} trials, scorer {made.before} -> {made.after}, {len(made.flips)} flips")
    by_id = {trial.trial_id: trial for trial in made.trials}
    for flip in made.flips[:SHOWN]:
        trial = by_id[flip.trial_id]
        console.say(f"  {trial.cell}, seed {trial.seed}: {flip.before} -> {flip.after}: {trial.answer[:60]!r}")
    if len(made.flips) > SHOWN:
        console.say(f"  and {len(made.flips) - SHOWN} more; --json lists all")
    if made.left:
        console.say(f"{made.left} answers were redacted, so their outcomes stay")
    if out is not None:
        console.say(f"next: evalgate gate {out} --policy POLICY")
