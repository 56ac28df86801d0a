"""Ctrl-C ends the command with 130 at any moment, in one line, whatever a library would make of it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evalgate.errors import ExitCode

RUN = ("run", "smoke", "--model", "builtin:hybrid", "--seeds", "50", "--out")
TOLD = "error: interrupted; a run resumes with the same command\n"

_AT_IMPORT = """
import os, signal, sys
from evalgate.cli import entry

target = sys.argv.pop(1)


def hook(event, arguments):
    if event == "import" and arguments[0] == target:
        os.kill(os.getpid(), signal.SIGINT)


sys.addaudithook(hook)
entry()
"""

_AFTER_A_WHILE = """
import sys
from evalgate.cli import entry


def hook(event, arguments):
    if event == "import" and arguments[0] == "evalgate.cli.app":
        print("started", flush=True)


sys.addaudithook(hook)
entry()
"""
"""Says so once it listens: what comes before is the interpreter's own start."""


def interrupted_at(module: str, *words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command, started by ``before``, that gets SIGINT when it begins to import ``module``."""
    command = [*before, sys.executable, "-c", _AT_IMPORT, module, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["typer.main", "evalgate.cli.demo", "numpy.dtypes"])
def test_interrupted_while_importing(module: str, tmp_path: Path) -> None:
    """A library such as numpy turns an interrupt into ImportError, and torch goes on without it: no chance of that."""
    ended = interrupted_at(module, *RUN, str(tmp_path / "run"))

    assert (ended.returncode, ended.stdout, ended.stderr) == (ExitCode.INTERRUPTED, "", TOLD)
    assert not (tmp_path / "run").exists()


def test_interrupt_is_json_where_that_was_asked_for() -> None:
    """With --json the interrupt is an object on standard output too."""
    ended = interrupted_at("rich.table", "runs", "list", "--json")
    assert ended.returncode == ExitCode.PASS, "a list as JSON needs no table"
    ended = interrupted_at("evalgate.cli.documents", "runs", "list", "--json")

    assert ended.stderr == TOLD
    assert json.loads(ended.stdout)["error"] == {
        "type": "Interrupted",
        "message": "interrupted; a run resumes with the same command",
        "exit_code": ended.returncode,
    }


def test_a_process_that_ignores_interrupts_goes_on(tmp_path: Path) -> None:
    """Started by nohup, or in the background of a script, the command is not for the terminal's Ctrl-C."""
    ignoring = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")
    ended = interrupted_at("typer.main", "runs", "list", str(tmp_path), before=ignoring)

    assert (ended.returncode, ended.stderr) == (ExitCode.PASS, "")


def test_interrupted_at_any_moment(tmp_path: Path) -> None:
    """Start, imports, loading, running: 130 and one line, without a traceback."""
    moments = (0.0, 0.1, 0.3, 0.5, 1.0, 2.0)
    with contextlib.ExitStack() as stack:
        started = []
        for moment in moments:
            command = [sys.executable, "-c", _AFTER_A_WHILE, *RUN, str(tmp_path / str(moment))]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
        for moment, process in zip(moments, started, strict=True):
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            time.sleep(moment)
            process.send_signal(signal.SIGINT)
        for moment, process in zip(moments, started, strict=True):
            _, told = process.communicate(timeout=60)
            progress, line = told[: -len(TOLD)], told[-len(TOLD) :]

            assert (process.returncode, line) == (ExitCode.INTERRUPTED, TOLD), f"{moment} s after the start: {told}"
            assert "Traceback" not in progress
