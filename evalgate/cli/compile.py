"""`evalgate suite compile`: the haystacks of a suite, built once for one tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalgate.cli import console
from evalgate.cli.run import SeedSet, Suite, Thinking, progress


def compile_suite(
    suite: Suite,
    tokenizer: Annotated[
        str, typer.Option(help="Whose tokens: an embedded model, a checkpoint folder or a hub id; no weights are read.")
    ],
    out: Annotated[Path, typer.Option(help="File to write, such as needle.parquet; it must not be there yet.")],
    seeds: Annotated[
        int, typer.Option(min=1, help="Haystacks per stream: the most seeds that a run of it can ask.")
    ] = 100,
    seed_set: SeedSet = "main",
    thinking_tokens: Thinking = None,
    json: console.Json = False,
) -> None:
    """Build every haystack of SUITE once, into a file that `run`, `check` and lm-eval take in place of its name."""
    from evalgate.runner import compile_to

    with progress(f"{suite} · {tokenizer}") as report:
        made = compile_to(
            suite, tokenizer, out, seeds=seeds, seed_set=seed_set, thinking=thinking_tokens, report=report
        )
    if json:
        console.emit({"file": str(out), **made._asdict()})
        return
    console.say(
        f"{out}: {made.haystacks:,} haystacks, {made.tokens:,} tokens, {out.stat().st_size:,} bytes",
        f"sha256 of what it holds: {made.sha256}",
        f"next: evalgate run {out} --model MODEL --out RUN",
    )
