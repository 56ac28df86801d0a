"""A server or a run that dies on the way: nothing is lost or asked twice, and nothing else goes on as the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fixtures_server import Proxy, Served, free_port, serving

from evalgate.errors import ExitCode
from evalgate.records import Trial
from evalgate.runner import RunRequest, prepare, run_suite
from evalgate.store import RunFolder

Evalgate = Callable[..., Any]
SEEDS = 4


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    """Trials of the engine itself."""
    asked = RunRequest(suite="smoke", model="builtin:hybrid", seeds=SEEDS, answers="keep")
    return run_suite(prepare(asked), tmp_path_factory.mktemp("native") / "run").trials()


def words(served_model: str, base_url: str, out: Path, *more: object) -> list[str]:
    """The arguments of a run against a server."""
    there = ("--backend", "openai", "--base-url", base_url, "--tokenizer", "builtin:hybrid", "--concurrency", 2)
    asked = ("run", "smoke", "--seeds", SEEDS, "--answers", "keep", "--model", served_model, "--out", out)
    return [str(word) for word in (*asked, *there, *more)]


def begin(arguments: list[str]) -> subprocess.Popen[str]:
    """Start a run as a process of its own."""
    command = [sys.executable, "-m", "evalgate", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_part(out: Path, process: subprocess.Popen[str]) -> None:
    """Until a haystack is kept."""
    until = time.monotonic() + 120
    while not list((out / "parts").glob("*.parquet")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, "no haystack was done in time"
        time.sleep(0.05)


def said(trials: list[Trial]) -> list[tuple[object, ...]]:
    """What must be the same of two runs."""
    return [(t.trial_id, t.prompt_sha256, t.answer, t.outcome, t.error) for t in trials]


def test_a_server_that_is_restarted(repository: Path, ours: list[Trial], tmp_path: Path) -> None:
    """Killed in mid-run and started again at its address: the run waits, asks again, and ends whole."""
    model, port = str(repository / "evalgate" / "assets" / "hybrid"), free_port()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with serving(model, port, tmp_path / "first") as there:
        process = begin(words(model, there.base_url, tmp_path / "run"))
        wait_for_part(tmp_path / "run", process)
    assert process.poll() is None, "the server was killed too late to matter"
    with serving(model, port, tmp_path / "second"):
        _, err = process.communicate(timeout=300)
    run = RunFolder.open(tmp_path / "run")

    assert process.returncode == ExitCode.PASS, err
    assert said(run.trials()) == said(ours)
    assert run.counters()["retries"] > 0


def test_a_run_that_is_killed(
    evalgate: Evalgate, proxy: Proxy, served: Served, ours: list[Trial], tmp_path: Path
) -> None:
    """After kill -9 the same command asks only what is missing; another way of asking is refused."""
    out = tmp_path / "run"
    process = begin(words(served.model, proxy.base_url, out))
    wait_for_part(out, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = sum(pq.read_metadata(part).num_rows for part in (out / "parts").glob("*.parquet"))
    assert 0 < kept < len(ours)
    for more, named in (
        (("--api", "chat"), "server.api"),
        (("--stream",), "server.stream"),
        (("--concurrency", "5"), "server.concurrency"),
        (("--thinking-tokens", "9"), "suite"),
        (("--profile", "state-int8"), "profile"),
    ):
        other = evalgate(*words(served.model, proxy.base_url, out, *more))
        assert other.code not in (ExitCode.PASS, ExitCode.BLOCK), more
        assert named in other.err, other.err
    gate = evalgate("gate", out, "--policy", "smoke", "--json")
    assert gate.code == ExitCode.ERROR
    proxy.pages["/v1/models"] = json.dumps({"data": [{"id": served.model, "max_model_len": 9999}]}).encode()
    moved = evalgate(*words(served.model, proxy.base_url, out))
    assert "another model" in moved.err, moved.err
    del proxy.pages["/v1/models"]
    proxy.asked.clear()
    # At another address it is the same server.
    ended = evalgate(*words(served.model, served.base_url, out))
    assert ended.code == ExitCode.PASS, ended.err
    run = RunFolder.open(out)
    assert said(run.trials()) == said(ours)
    # Models, the prompt as ids and as text, another answer, and another name: five before the first question.
    counters = run.counters()
    assert counters["requests"] - counters["retries"] == len(ours) - kept + 5


def test_a_key_is_nowhere(proxy: Proxy, served: Served, tmp_path: Path) -> None:
    """Not in what a run prints nor in any file that it leaves, whatever the server says back."""
    out = tmp_path / "run"
    proxy.faults.extend([lambda body: body] * 4 + [lambda _: 400, lambda _: 429, lambda _: None])
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "evalgate",
            *words(served.model, proxy.base_url, out, "--header", "X-Token: sk-header", "--seeds", 1),
        ],
        env=os.environ | {"OPENAI_API_KEY": "sk-secret"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == ExitCode.PASS, process.stderr
    assert proxy.seen[0]["Authorization"] == "Bearer sk-secret"
    assert {trial.error for trial in RunFolder.open(out).trials()} == {"", "http-400"}
    for secret in ("sk-secret", "sk-header"):
        assert secret not in process.stdout + process.stderr
        assert not [path for path in out.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_ctrl_c_ends_while_answers_are_awaited(proxy: Proxy, served: Served, tmp_path: Path) -> None:
    """At once, in one line, though requests are under way that would take minutes."""
    away = threading.Event()

    def slow(body: Any) -> Any:
        away.wait(60)
        return body

    proxy.faults.extend([lambda body: body] * 4 + [slow] * 20)
    process = begin(words(served.model, proxy.base_url, tmp_path / "run"))
    until = time.monotonic() + 120
    while len(proxy.asked) < 6:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until, "no question was asked in time"
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=30)
    finally:
        away.set()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in err
    assert "interrupted" in err
