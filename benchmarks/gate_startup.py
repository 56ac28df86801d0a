"""How long the judge takes to start: `evalgate gate` on a stored run, beside a bare interpreter and one import.

    python benchmarks/gate_startup.py [--rounds 21]

Every command is timed once a round, so that a noisy machine is noisy for all; figures are medians, and ratios to
``python -c pass`` of the same run.  The target: a judge starts before an engine could, within an import of torch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workbench import write_result

OUT = Path(__file__).with_suffix(".json")


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


def main() -> int:
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
    for name, value in medians.items():
        print(f"{name:24s} {value:6.3f} s {value / bare:6.1f}x")
    return write_result(
        OUT,
        1,
        met=medians["evalgate gate"] < medians["import torch"],
        rounds=options.rounds,
        seconds={name: round(value, 3) for name, value in medians.items()},
        times_python={name: round(value / bare, 1) for name, value in medians.items()},
    )


if __name__ == "__main__":
    raise SystemExit(main())
