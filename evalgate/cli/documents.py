"""`evalgate suite|policy|profile`: documents to start from, documents checked, and their versions governed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalgate.cli import console, governance
from evalgate.cli.compile import compile_suite
from evalgate.cli.profile_log import profile_log

if TYPE_CHECKING:
    from evalgate.runner import Fit

suite = typer.Typer(help="Suites: which tasks, lengths and bands are asked.", no_args_is_help=True)
policy = typer.Typer(help="Policies: what must hold before a model may ship.", no_args_is_help=True)
profile = typer.Typer(help="Profiles: how a model compresses its context.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the new document: small letters, digits, dots and dashes.")]
Out = Annotated[
    Path | None, typer.Option(help="Write to this file, which must not be there yet; else print.", show_default=False)
]
Ref = Annotated[str, typer.Argument(help="NAME (newest), NAME@1.0.0, or a YAML file.", show_default=False)]

suite.command("compile")(compile_suite)


@suite.command("new")
def suite_new(name: Name, out: Out = None, json: console.Json = False) -> None:
    """Print a commented suite to start from."""
    from evalgate.tasks.template import template

    _give(template(name), out, json)


@suite.command("lint")
def suite_lint(
    ref: Ref,
    model: Annotated[
        str | None,
        typer.Option(help="Check lines and lengths in the tokens of this model too, as `run` does before it starts."),
    ] = None,
    json: console.Json = False,
) -> None:
    """Check a suite, and say what it asks of every haystack."""
    from evalgate.tasks.suite import load_suite

    document = load_suite(ref)
    cells = document.cells()
    fit = None
    if model is not None:
        from evalgate.runner import fit_suite

        fit = fit_suite(document, model)
    if json:
        body = {"suite": document.ref, "digest": document.digest, "cells": [list(cell) for cell in cells]}
        console.emit(body | {"fit": None if fit is None else asdict(fit)})
        return
    asked = {
        "tasks": document.tasks,
        "lengths": [str(length) for length in document.lengths],
        "bands": list(document.bands),
        "arms": list(document.arms),
    }
    lines = [f"{what}: {', '.join(values)}" for what, values in asked.items()]
    console.say(f"{document.ref} is valid: {len(cells)} cells", *lines, *_fit_lines(fit), f"digest {document.digest}")


def _fit_lines(fit: Fit | None) -> list[str]:
    from evalgate.tasks.prompt import MOST_FILLER_TOKENS, MOST_NEEDLE_TOKENS

    limits = f"a needle line takes at most {MOST_NEEDLE_TOKENS} tokens, a filler line {MOST_FILLER_TOKENS}"
    if fit is None:
        return [f"not checked without --model: that {limits}, and that lengths hold their needles, in its tokens"]
    return [
        f"in tokens of {fit.model}: {limits} (the longest needle line: {fit.needle_tokens})",
        f"kept for template, question and answer: {fit.reserve_tokens} tokens of every length",
        *(f"stream {at}: {', '.join(entries)}" for at, entries in enumerate(fit.streams)),
    ]


@policy.command("new")
def policy_new(
    name: Name,
    for_suite: Annotated[
        str, typer.Option("--suite", help="Suite that the policy judges: NAME, NAME@1.0.0 or a file.")
    ],
    out: Out = None,
    json: console.Json = False,
) -> None:
    """Print a commented policy for a suite, with the suite's tasks, lengths and bands filled in."""
    from evalgate.gates.policy import template
    from evalgate.tasks.suite import load_suite

    asked = load_suite(for_suite)
    text = template(name, asked.ref, tasks=asked.tasks, lengths=asked.lengths, bands=list(asked.bands))
    _give(text, out, json)


@policy.command("lint")
def policy_lint(ref: Ref, json: console.Json = False) -> None:
    """Check a policy, and say what it can decide: the counts that pass and block, and how often good models pass."""
    from evalgate.gates.policy import load_policy
    from evalgate.gates.power import power

    document = load_policy(ref)
    rows = power(document)
    if json:
        body = {"policy": document.ref, "digest": document.digest, "looks": document.looks}
        console.emit(body | {"rules": [row._asdict() | {"first": row.first} for row in rows]})
        return
    from rich.table import Table

    table = Table("tier", "bar", "seeds", "cells", "PASS from", "BLOCK to")
    for true in rows[0].passes:
        table.add_column(f"at {true}", justify="right")
    for row in rows:
        chances = [f"{row.passes[true]:.0%} / {row.blocks[true]:.0%}" for true in row.passes]
        looks = "/".join(map(str, row.looks))
        table.add_row(row.tier, str(row.bar), looks, str(row.cells), row.pass_words, row.block_words, *chances)
    console.say(f"{document.ref} is valid and judges {document.suite}", table)
    console.say("at R: chance that one cell whose true recall is R passes / blocks")
    for row in rows:
        seen = ", ".join(f"{verdict} {'never' if n is None else n}" for verdict, n in row.first.items())
        console.say(f"first look, in seeds, that can give each verdict ({row.tier}, bar {row.bar}): {seen}")
    if any(row.pass_min is None and row.block_max is None for row in rows):
        console.say("At so few seeds its bars decide nothing: it shows that the path works, and that the run is valid.")
    console.say(f"digest {document.digest}")


@profile.command("new")
def profile_new(name: Name, out: Out = None, json: console.Json = False) -> None:
    """Print a commented profile that compresses nothing yet."""
    from evalgate.gates.profile import template

    _give(template(name), out, json)


@profile.command("lint")
def profile_lint(ref: Ref, json: console.Json = False) -> None:
    """Check a profile and show its settings, with every default filled in."""
    from evalgate.gates.profile import load_profile

    document = load_profile(ref)
    if json:
        console.emit({"profile": document.ref, "digest": document.digest, "settings": document.sections})
        return
    lines = [f"{section}.{key} = {value}" for section, keys in document.sections.items() for key, value in keys.items()]
    console.say(f"{document.ref} is valid", *lines, f"digest {document.digest}")


profile.command("log")(profile_log)

for _group, _name in ((suite, "suite"), (policy, "policy"), (profile, "profile")):
    governance.add_to(_group, _name)


def _give(text: str, out: Path | None, json: bool) -> None:
    from evalgate import disk

    if out is not None:
        console.existing_file_is_kept(out)
        disk.make_folder(out.parent)
        disk.replace(out, text.encode())
    if json:
        console.emit({"file": None if out is None else str(out), "yaml": text})
    elif out is None:
        console.put(text)
    else:
        console.say(f"{out}  (edit it, then check it with lint)")
