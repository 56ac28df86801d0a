"""Fixtures: a real server of an embedded model, and a proxy before it that does what networks do."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

START_S = 120.0
"""Seconds that a server may take to come up beside other work."""


class Served(NamedTuple):
    """A server that runs."""

    base_url: str
    model: str


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="session")
def served(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`transformers serve` with ``builtin:hybrid``."""
    model = str(repository / "evalgate" / "assets" / "hybrid")
    port = free_port()
    program = Path(sys.executable).with_name("transformers")
    command = [str(program), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    folder = tmp_path_factory.mktemp("server")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--device", "cpu", "--dtype", "float32"], stdout=log, stderr=log, env=environment, cwd=folder
        )
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, folder / "log")
        yield Served(f"http://127.0.0.1:{port}/v1", model)
    finally:
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.3)
    raise AssertionError(f"no server after {START_S} s: {log.read_text()[-2000:]}")


Fault = Callable[[dict[str, Any]], Any]
"""What becomes of an answer: other JSON, bytes as they are, a number (an HTTP state), or None (the line is cut)."""


class Proxy(NamedTuple):
    """An address, the faults of the next answers, and the headers that came."""

    base_url: str
    faults: list[Fault]
    seen: list[dict[str, str]]


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    """A proxy before the real server: each POST takes the next fault, and goes through where there is none."""
    faults: list[Fault] = []
    seen: list[dict[str, str]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = httpx.get(served.base_url + self.path.removeprefix("/v1"), timeout=60)
            self._send(answer.status_code, answer.content)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                seen.append(dict(self.headers))
                fault = faults.pop(0) if faults else None
            answer = httpx.post(
                served.base_url + self.path.removeprefix("/v1"),
                content=body,
                headers={"Content-Type": "application/json"},
                timeout=60,
            )
            changed = answer.content if fault is None else fault(answer.json())
            if changed is None:
                self.connection.shutdown(socket.SHUT_RDWR)
            elif isinstance(changed, int):
                self._send(changed, b'{"detail": "not now, sk-secret"}')
            elif isinstance(changed, bytes):
                self._send(200 if fault else answer.status_code, changed)
            else:
                self._send(200, json.dumps(changed).encode())

        def _send(self, state: int, content: bytes) -> None:
            self.send_response(state)
            self.send_header("Content-Type", "application/json")
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # whoever asked has gone
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Proxy(f"http://127.0.0.1:{server.server_address[1]}/v1", faults, seen)
    server.shutdown()
    server.server_close()
    thread.join()
