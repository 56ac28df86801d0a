"""What a command says: text or one JSON object on standard output, one red line on standard error.

What it prints was often written by a model or found in a file, so control characters never reach the terminal.
A reader who closes the pipe early does not change the exit code.
"""

from __future__ import annotations

import contextlib
import json as codec
import os
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from evalgate.errors import EvalgateError, RefusedError, StorageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = [
    "Baseline",
    "Json",
    "Run",
    "complain",
    "emit",
    "existing_file_is_kept",
    "open_console",
    "put",
    "results_are_kept",
    "say",
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Run = Annotated[Path, typer.Argument(help="Run folder.", show_default=False)]
Baseline = Annotated[Path | None, typer.Option(help="Run folder to compare with, over the same haystacks.")]

RESULTS = frozenset({"manifest.json", "contexts.parquet", "trials.parquet", "counters.json"})
OWN_FOLDERS = frozenset({("parts",), ("verdicts",), ("digests",)})
"""What a run folder holds that only the store writes."""

WIDTH_OF_A_LOG = 120
"""Columns where nobody's terminal says how wide it is."""


def open_console(file: IO[str] | None = None) -> Console:
    """A rich console on ``file`` (standard output by default); colours only on a terminal."""
    from rich.console import Console

    class Lasting(Console):
        """Leaves a closed pipe to `_open_ended`: rich's own answer is to exit with 1, which means BLOCK here."""

        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 - rich calls this while it handles the error

    file = file or sys.stdout
    return Lasting(
        file=file,
        width=None if file.isatty() else WIDTH_OF_A_LOG,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not file.isatty(),
    )


def say(*lines: RenderableType) -> None:
    """Print text or tables to standard output."""
    with _open_ended():
        console = open_console()
        for line in lines:
            console.print(_visible(line) if isinstance(line, str) else line)
        sys.stdout.flush()


def emit(body: object) -> None:
    """Print one JSON value to standard output."""
    put(codec.dumps(body, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def put(text: str) -> None:
    """Print ``text`` to standard output as it is."""
    with _open_ended():
        sys.stdout.write(text)
        sys.stdout.flush()


def complain(message: str, kind: str, code: int) -> None:
    """Say in red, on standard error, why the command ended; with ``--json`` also as an object on standard output."""
    if "--json" in sys.argv[1:]:
        with contextlib.suppress(EvalgateError):  # where standard output is the fault, standard error still says so
            emit({"error": {"type": kind, "message": message, "exit_code": int(code)}})
    text = f"error: {_visible(message)}"
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        text = f"\x1b[31m{text}\x1b[0m"
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def existing_file_is_kept(path: Path) -> None:
    """Raise RefusedError where ``path`` is there already: what a person wrote is not overwritten."""
    if path.exists():
        raise RefusedError(f"{path} is there already; choose another --out, or move it away")


def results_are_kept(path: Path, *runs: Path | None) -> None:
    """Raise RefusedError where writing ``path`` would replace a file that a run consists of."""
    for run in runs:
        if run is None:
            continue
        inside = path.resolve().relative_to(run.resolve()) if path.resolve().is_relative_to(run.resolve()) else None
        if inside is not None and (str(inside) in RESULTS or inside.parts[:1] in OWN_FOLDERS):
            raise RefusedError(f"{path} is a part of run {run}; writing it would destroy the run: choose another file")


def _visible(text: str) -> str:
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cf", "Cs"} else "\ufffd" for c in text)


@contextlib.contextmanager
def _open_ended() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        # The reader has gone; what is still to be flushed at exit has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StorageError(f"standard output cannot be written ({error.strerror}); send it elsewhere") from error
