"""`evalgate state`: what decides retention in a model's recurrent state, as numbers and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalgate.cli import console
from evalgate.cli.run import SeedSet, progress

if TYPE_CHECKING:
    from rich.table import Table

    from evalgate.reports.state_view import StateView


def state(
    model: Annotated[
        str,
        typer.Argument(help="Model to look at: whatever `evalgate run` takes as --model.", show_default=False),
    ],
    suite: Annotated[
        str, typer.Option(help="Suite whose haystack streams through: NAME, NAME@1.0.0, or a file.")
    ] = "demo",
    length: Annotated[
        int | None,
        typer.Option(help="Length of the context, one of the suite's; else its longest.", show_default=False),
    ] = None,
    seed_set: SeedSet = "main",
    profiles: Annotated[
        str | None,
        typer.Option(
            help="Profiles to compare, such as state-int8,state-rank-4; else all that can act on the model's state."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="HTML page to write, in place of one that is there.", show_default=False)
    ] = None,
    json: console.Json = False,
) -> None:
    """Look at the state of MODEL's linear-attention (KDA) layers: half-lives, norm, effective rank and saturation.

    Measured while a real haystack streams through, before and after each profile's codec.

    What the figures mean for choosing a compression rate: docs/state.md in the repository.
    """
    from evalgate import disk
    from evalgate.reports.html import render_state
    from evalgate.reports.state_view import build_state_view
    from evalgate.runner.state import StateRequest, see_state

    if out is not None:
        # A folder that cannot be made is told before the work, not after it.
        disk.make_folder(out.parent)
    names = None if profiles is None else profiles.split(",")
    request = StateRequest(model=model, suite=suite, length=length, seed_set=seed_set, profiles=names)
    with progress(f"state of {model} on {suite}", "tokens") as report:
        record = see_state(request, report)
    view = build_state_view(record)
    if out is not None:
        disk.replace(out, render_state(view).encode())
    if json:
        console.emit(record.model_dump(mode="json") | {"file": None if out is None else str(out)})
        return
    console.say(f"{view.title}: {view.subject}", *_tables(view), view.sentence)
    console.say(f"page: {out}" if out is not None else "the page with every head and position: add --out state.html")


def _tables(view: StateView) -> list[Table]:
    from rich.table import Table

    layers = Table(
        "layer", "half-life", f"outlive {view.horizons}", "with no input", "rank", "saturation", "left f / m / b"
    )
    for row in view.layers:
        layers.add_row(row.label, row.median, row.seen, row.rest, row.rank, row.saturation, row.kept)
    if not view.codecs:
        return [layers]
    codecs = Table("profile", "stored", "bytes", "of fp32", "one round trip", "as held", "rank after")
    for codec in view.codecs:
        codecs.add_row(codec.name, codec.form, codec.nbytes, codec.share, codec.once, codec.held, codec.rank)
    return [layers, codecs]
