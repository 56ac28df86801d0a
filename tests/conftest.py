"""What holds for every test, and where the shared fixtures are."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

# Tests share a small machine with each other's subprocesses, and no test may reach for a network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported: kernels run on the processor
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A module that others import comes before them: pytest rewrites the asserts of what is not imported yet.
pytest_plugins = [
    "fixtures_records",
    "fixtures_judged",
    "fixtures_command",
    "fixtures_evidence",
    "fixtures_engine",
    "fixtures_requests",
    "fixtures_report",
    "fixtures_state",
    "fixtures_server",
]

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
collect_ignore = [] if CHROMIUM else ["test_report_browser.py"]


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes that tests start: a job in the background of a script inherits deafness to it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why the report was not tried in a browser, where it was not."""
    if not CHROMIUM:
        terminalreporter.write_line("test_report_browser.py not collected: no chromium; install it or set CHROMIUM")


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return Path(__file__).parent.parent
