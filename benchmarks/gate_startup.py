"""How long the judge takes to start: `evalgate gate` on a stored run, beside a bare interpreter and one import.

    python benchmarks/gate_startup.py [--rounds 21]

Every command is timed once a round, so that a noisy machine is noisy for all; figures are medians, and ratios to
``python -c pass`` of the same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent


def commands(run: Path) -> dict[str, list[str]]:
    """What is timed: name -> command."""
    judge = [sys.executable, "-m", "evalgate"]
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import scipy.special": [sys.executable, "-c", "import scipy.special"],
        "import torch": [sys.executable, "-c", "import torch"],
        "evalgate --version": [*judge, "--version"],
        "evalgate gate": [*judge, "gate", str(run), "--policy", "smoke"],
        "evalgate report": [*judge, "report", str(run), "--out", str(run.parent / "report.html")],
    }


def timed(command: list[str]) -> float:
    """Seconds that ``command`` takes; raises CalledProcessError where it fails."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    """Time everything, and keep the result beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        ask = ["run", "smoke", "--model", "builtin:hybrid", "--seeds", "2", "--out", str(run)]
        subprocess.run([sys.executable, "-m", "evalgate", *ask], check=True, capture_output=True)
        asked = commands(run)
        for command in asked.values():
            timed(command)  # files come from the disk once
        seconds: dict[str, list[float]] = {name: [] for name in asked}
        for _ in range(options.rounds):
            for name, command in asked.items():
                seconds[name].append(timed(command))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    bare = medians["python -c pass"]
    result = {
        "measured": f"{datetime.now(UTC):%Y-%m-%d}",
        "python": platform.python_version(),
        "rounds": options.rounds,
        "seconds": {name: round(value, 3) for name, value in medians.items()},
        "times_python": {name: round(value / bare, 1) for name, value in medians.items()},
    }
    print(json.dumps(result, indent=2))
    (HERE / "gate_startup.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
