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

from evalgate.backends.base import Ask, Group, Question
from evalgate.backends.served import ServedBackend
from evalgate.backends.server_options import ServerOptions

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


@contextlib.contextmanager
def serving(model: str, port: int, folder: Path) -> Iterator[Served]:
    """`transformers serve` of a checkpoint folder; killed at the end."""
    program = Path(sys.executable).with_name("transformers")
    command = [str(program), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
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


@pytest.fixture(scope="session")
def served(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of ``builtin:hybrid``."""
    model = str(repository / "evalgate" / "assets" / "hybrid")
    with serving(model, free_port(), tmp_path_factory.mktemp("server")) as there:
        yield there


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


def open_backend(base_url: str, model: str, **fields: Any) -> ServedBackend:
    """A backend with the embedded tokenizer."""
    return ServedBackend(model, ServerOptions(base_url=base_url, tokenizer="builtin:hybrid", **fields))


def group_of(backend: ServedBackend, questions: int) -> Group:
    """A short context and some questions about it."""
    tokens = backend.tokenizer.encode("The access number of the amber harbour is 123456.\n")
    tails = [backend.tokenizer.encode(f"What is number {i}?") for i in range(questions)]
    asked = [Question(tail, len(tokens) + len(tail), f"trial-{i}") for i, tail in enumerate(tails)]
    return Group(tokens, 0, [Ask(len(tokens), asked)], 3, backend.tokenizer.eos_ids)


Fault = Callable[[Any], Any]
"""What becomes of an answer, JSON or a stream's text: other JSON, bytes as they are, a number (an HTTP state), or None
(the line is cut)."""


class Proxy(NamedTuple):
    """An address, the faults of the next answers, the headers that came, and what was asked."""

    base_url: str
    faults: list[Fault]
    seen: list[dict[str, str]]
    asked: list[dict[str, Any]]
    at_once: list[int]
    """Requests that were under way when each came, itself counted."""
    pages: dict[str, bytes]
    """Pages of its own, by path."""


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    """A proxy before the real server: each POST takes the next fault, and goes through where there is none."""
    faults: list[Fault] = []
    seen: list[dict[str, str]] = []
    asked: list[dict[str, Any]] = []
    at_once: list[int] = []
    pages: dict[str, bytes] = {}
    under_way: set[int] = set()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path in pages:
                self._send(200, pages[self.path])
                return
            root = served.base_url.removesuffix("/v1")
            answer = httpx.get(root + self.path, timeout=60)
            self._send(answer.status_code, answer.content)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                seen.append(dict(self.headers))
                asked.append(json.loads(body))
                under_way.add(id(self))
                at_once.append(len(under_way))
                fault = faults.pop(0) if faults else None
            answer = httpx.post(
                served.base_url + self.path.removeprefix("/v1"),
                content=body,
                headers={"Content-Type": "application/json"},
                timeout=60,
            )
            streamed = answer.headers["content-type"].startswith("text/event-stream")
            changed = answer.content if fault is None else fault(answer.text if streamed else answer.json())
            with lock:
                under_way.discard(id(self))
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
    yield Proxy(f"http://127.0.0.1:{server.server_address[1]}/v1", faults, seen, asked, at_once, pages)
    server.shutdown()
    server.server_close()
    thread.join()
