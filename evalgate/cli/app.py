"""The `evalgate` command: its commands, and what an error becomes on the way out.

Every exit code comes from `ExitCode`: a verdict gives its own, an `EvalgateError` that of its class, and anything
that was not foreseen is ERROR, never 0 and never 1, which belong to verdicts.
"""

from __future__ import annotations

import itertools
import sys
import traceback
from typing import Annotated

import typer

from evalgate import __version__
from evalgate.cli import console, documents, evidence, kernels, runs
from evalgate.cli.audit import audit
from evalgate.cli.capacity import capacity
from evalgate.cli.check import check
from evalgate.cli.demo import demo
from evalgate.cli.doctor import doctor
from evalgate.cli.gate import gate
from evalgate.cli.report import report
from evalgate.cli.rescore import rescore
from evalgate.cli.run import run
from evalgate.cli.schema import schema
from evalgate.cli.start import INTERRUPTED
from evalgate.cli.state import state
from evalgate.cli.sweep import sweep
from evalgate.errors import EvalgateError, ExitCode, RefusedError

__all__ = ["app", "run_command"]

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

SIGNING = {"cryptography", "securesystemslib"}
"""Packages of the extra `sign`."""


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
app.command()(sweep)
app.command()(audit)
app.command()(rescore)
app.command()(capacity)
app.command()(state)
app.command()(schema)
app.add_typer(documents.suite, name="suite")
app.add_typer(documents.policy, name="policy")
app.add_typer(documents.profile, name="profile")
app.add_typer(runs.app, name="runs")
app.add_typer(kernels.app, name="kernels")
app.add_typer(evidence.app, name="evidence")
app.command()(doctor)


def run_command() -> int:
    """Run the command that `sys.argv` asks for; returns its exit code, and says why where it is not the command's."""
    try:
        _refuse_empty(sys.argv[1:])
        code = app(prog_name="evalgate", standalone_mode=False)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except typer.TyperException as error:
        return _misused(error)
    except (EvalgateError, ModuleNotFoundError, OSError) as error:
        return _told(error)
    except SystemExit:
        # typer's answer, with code 1, to a reader that closed the pipe: no verdict.
        console.complain("standard output or error was closed before the command was done", "Disk", ExitCode.ERROR)
        return ExitCode.ERROR
    except Exception as error:  # noqa: BLE001 - whatever is not foreseen must not look like a verdict
        traceback.print_exc()
        console.complain(f"evalgate failed: {error!r}; this is a fault of the program", "Crash", ExitCode.ERROR)
        return ExitCode.ERROR
    if code == ExitCode.INTERRUPTED:
        console.complain(INTERRUPTED, "Interrupted", ExitCode.INTERRUPTED)
    return code if isinstance(code, int) else ExitCode.PASS


def _refuse_empty(arguments: list[str]) -> None:
    """Raise RefusedError for an empty argument: an unset variable of a script, which must not mean `here`."""
    for before, argument in itertools.pairwise(["", *arguments]):
        option, given, value = argument.partition("=")
        empty = f"the argument after {before}" if before.startswith("-") else "an argument"
        if option.startswith("--") and given and not value:
            empty = option
        elif argument:
            continue
        raise RefusedError(f"{empty} is empty; give it a value, or leave it out (is a variable of a script unset?)")


def _misused(error: typer.TyperException) -> ExitCode:
    """Say what was wrong with the arguments; where there were none, the help was printed already."""
    message = error.format_message()
    if message:
        context = getattr(error, "ctx", None)
        command = "evalgate" if context is None else context.command_path
        console.complain(f"{message.rstrip('.')}; see `{command} --help`", "UsageError", ExitCode.REFUSED)
    return ExitCode.REFUSED


def _told(error: EvalgateError | ModuleNotFoundError | OSError) -> ExitCode:
    """Say what a foreseen error was, without a traceback, and return its code."""
    if isinstance(error, EvalgateError):
        console.complain(str(error), type(error).__name__, error.exit_code)
        return error.exit_code
    if isinstance(error, ModuleNotFoundError):
        console.complain(_lacks(error.name or "a package"), "MissingPackage", ExitCode.ERROR)
        return ExitCode.ERROR
    # A name that no disk can hold, a folder that vanished.
    where = f"{str(error.filename)[:200]}: " if error.filename else ""
    console.complain(f"{where}{error.strerror or error}; check the path", "Disk", ExitCode.ERROR)
    return ExitCode.ERROR


def _lacks(package: str) -> str:
    """What to do where ``package`` is not installed."""
    if package.partition(".")[0] in SIGNING:
        return f"evidence needs {package}, which is not installed: `pip install 'evalgate-longctx[sign]'`"
    return (
        f"this installation lacks {package}; it may be one for judging only, which knows `gate` and `report`: "
        "install the rest with `pip install evalgate-longctx`"
    )
