"""A server on this machine, for as long as something is asked of it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx

START_S = 600.0
"""Seconds that a server may take to come up: vLLM compiles first."""


@contextlib.contextmanager
def serving(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Start ``command`` with a port of its own added; gives the base address, and ends the server and its children.

    Raises SystemExit where it dies or does not answer in time.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=out,
            stderr=out,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with code {process.returncode}; see {log}")
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise SystemExit(f"no server after {START_S:g} s; see {log}")
