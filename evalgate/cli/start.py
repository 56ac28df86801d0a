"""Starting the command: Ctrl-C works from here on, before anything heavy is imported."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from evalgate.errors import ExitCode

__all__ = ["INTERRUPTED", "entry", "main"]

INTERRUPTED = "interrupted; a run resumes with the same command"

CLEAR_LINE = "\r\x1b[2K\x1b[?25h"
"""For a terminal: takes away a half-drawn progress line, and shows the cursor that it hid."""


def main() -> NoReturn:
    """Run the command that `sys.argv` asks for and exit with its code."""
    from evalgate.cli import app

    sys.exit(app.run_command())


def entry() -> NoReturn:
    """`main` for a process of its own: Ctrl-C ends it at once, and so does the end of the command.

    Libraries with threads of their own have been seen to abort while the interpreter takes them down, and a verdict's
    exit code must not hang on that. All results are on the disk by now.
    """
    # A process that was started to ignore the signal (nohup, a job in the background) goes on ignoring it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    from evalgate.cli import app

    code = app.run_command()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Say so and end the process.

    An exception is what libraries swallow: in a bare except around an import, in a callback, in a finalizer. Nothing
    needs unwinding: a run folder is whole at every moment, and its lock ends with the process. Written past Python's
    buffers, which the interrupted code may be in the middle of.
    """
    terminal = os.isatty(2)
    told = f"error: {INTERRUPTED}"
    if terminal:
        told = CLEAR_LINE + (told if "NO_COLOR" in os.environ else f"\x1b[31m{told}\x1b[0m")
    body = {"error": {"type": "Interrupted", "message": INTERRUPTED, "exit_code": int(ExitCode.INTERRUPTED)}}
    with contextlib.suppress(OSError):
        os.write(2, f"{told}\n".encode())
    with contextlib.suppress(OSError):
        if "--json" in sys.argv[1:]:
            os.write(1, f"{json.dumps(body, indent=2)}\n".encode())
    os._exit(ExitCode.INTERRUPTED)
