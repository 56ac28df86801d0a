"""The `evalgate` command: its commands, and what an error becomes on the way out.

Every exit code comes from `ExitCode`: a verdict gives its own, an `EvalgateError` that of its class, and anything
that was not foreseen is ERROR, never 0 and never 1, which belong to verdicts.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from evalgate import __version__
from evalgate.cli import console, documents, runs
from evalgate.cli.check import check
from evalgate.cli.demo import demo
from evalgate.cli.doctor import doctor
from evalgate.cli.gate import gate
from evalgate.cli.report import report
from evalgate.cli.run import run
from evalgate.errors import EvalgateError, ExitCode

__all__ = ["entry", "main"]

app = typer.Typer(
    name="evalgate",
    help="Measure long-context recall by needle position, length and task, and turn it into a verdict.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

EPILOG = (
    "Exit codes: 0 PASS or done, 1 BLOCK, 2 refused, 3 INCONCLUSIVE, 4 ERROR, 5 TAMPERED, 130 interrupted. "
    "Every command has --json."
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"evalgate {__version__}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure long-context recall by needle position, length and task, and turn it into a verdict."""


app.command()(demo)
app.command()(run)
app.command()(gate)
app.command()(report)
app.command()(check)
app.add_typer(documents.suite, name="suite")
app.add_typer(documents.policy, name="policy")
app.add_typer(documents.profile, name="profile")
app.add_typer(runs.app, name="runs")
app.command()(doctor)


def main() -> NoReturn:
    """Run the command that `sys.argv` asks for and exit with its code."""
    sys.exit(_run())


def entry() -> NoReturn:
    """`main` for a process of its own.

    Leaves at once: libraries with threads of their own have been seen to abort while the interpreter takes them
    down, and a verdict's exit code must not hang on that. All results are on the disk by now.
    """
    code = _run()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run() -> int:
    try:
        app(prog_name="evalgate")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else ExitCode.PASS if end.code is None else ExitCode.ERROR
        if code == ExitCode.INTERRUPTED:
            console.complain("interrupted; a run resumes with the same command", "Interrupted", code)
        return code
    except KeyboardInterrupt:
        console.complain("interrupted; a run resumes with the same command", "Interrupted", ExitCode.INTERRUPTED)
        return ExitCode.INTERRUPTED
    except (EvalgateError, ModuleNotFoundError, OSError) as error:
        return _told(error)
    except Exception as error:  # noqa: BLE001 - whatever is not foreseen must not look like a verdict
        traceback.print_exc()
        console.complain(f"evalgate failed: {error!r}; this is a fault of the program", "Crash", ExitCode.ERROR)
        return ExitCode.ERROR
    return ExitCode.PASS


def _told(error: EvalgateError | ModuleNotFoundError | OSError) -> ExitCode:
    """Say what a foreseen error was, without a traceback, and return its code."""
    if isinstance(error, EvalgateError):
        console.complain(str(error), type(error).__name__, error.exit_code)
        return error.exit_code
    if isinstance(error, ModuleNotFoundError):
        console.complain(
            f"this installation lacks {error.name}; it may be one for judging only, which knows `gate` and `report`: "
            "install the rest with `pip install evalgate-longctx`",
            "MissingPackage",
            ExitCode.ERROR,
        )
        return ExitCode.ERROR
    # A name that no disk can hold, a folder that vanished.
    where = f"{str(error.filename)[:200]}: " if error.filename else ""
    console.complain(f"{where}{error.strerror or error}; check the path", "Disk", ExitCode.ERROR)
    return ExitCode.ERROR
