"""Are the GPU kernels right and fast on this machine, and the program? One command, at most six minutes, no network.

    python tools/gpu_check.py

First every kernel is compared with its equation in float64 at the published shapes, on fresh numbers, and an embedded
model's answers with those of the processor; then a suite is run, and medians are taken by device events.  Writes
``benchmarks/gpu/CHIP.json`` and prints a table in Markdown.  Exits 1 where something is wrong or a target is missed, 2
where there is no GPU.

``TRITON_INTERPRET=1 python tools/gpu_check.py --device cpu-interpret --tiny`` compares only, at small shapes, on the
processor.
"""

from __future__ import annotations

import argparse
import secrets
import shlex
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evalgate.errors import EvalgateError
from evalgate.kernels.ops import usable

if TYPE_CHECKING:
    from gpu_clock import Clock, Rates
    from gpu_compare import Check
    from gpu_inputs import Maker
    from gpu_speed import Speed

OUT = Path(__file__).resolve().parent.parent / "benchmarks" / "gpu"


def main(arguments: list[str] | None = None) -> int:
    """Compare, measure, write, print; returns the exit code."""
    asked = _asked(arguments)
    try:
        usable(asked.device)
    except EvalgateError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    if asked.device != "cuda" and not asked.tiny:
        print("gpu_check: --device cpu-interpret takes hours at the published shapes; add --tiny", file=sys.stderr)
        return 2
    # Imported here: triton and the kernels only where they can run.
    from gpu_clock import Clock
    from gpu_inputs import PUBLISHED, TINY, Maker
    from gpu_table import document, markdown, write
    from gpu_truth import checks
    from gpu_whole import parity

    started = time.monotonic()
    device = torch.device("cuda" if asked.device == "cuda" else "cpu")
    clock, make = Clock(device, asked.minutes), Maker(device, asked.seed)
    told = _compared(checks(make, TINY if asked.tiny else PUBLISHED, tiny=asked.tiny))
    told += _compared(parity(make, asked.device, tiny=asked.tiny))
    speeds, rates = _measured(clock, make) if device.type == "cuda" and not asked.tiny else ([], None)
    facts = _facts(device, asked.seed) | {"seconds": round(time.monotonic() - started, 1)}
    body = document(told, speeds, rates, **facts)
    if speeds or asked.out != OUT:
        print(f"\nwritten to {write(asked.out, body)}")
    if speeds:
        print(f"\n{markdown(speeds)}")
    wrong = sum(not check.ok for check in told)
    missed = sum(speed.met is False for speed in speeds)
    print(f"\n{len(told) - wrong} of {len(told)} comparisons right, {missed} targets missed, {facts['seconds']} s")
    return 1 if wrong or missed else 0


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu-interpret"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, and no medians")
    parser.add_argument("--minutes", type=float, default=5.5, help="after which nothing more is measured")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="of the numbers; else a fresh one")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the JSON file")
    return parser.parse_args(arguments)


def _compared(checks: Iterable[Check]) -> list[Check]:
    """Go through the comparisons, saying each as it is done."""
    told = []
    for check in checks:
        told.append(check)
        verdict = "right" if check.ok else "WRONG"
        print(f"{verdict}  {check.kernel}: {check.what}: {check.worst:.1e} of {check.allowed:.1e}", flush=True)
    return told


def _measured(clock: Clock, make: Maker) -> tuple[list[Speed], Rates]:
    """Go through the medians, saying each as it is taken."""
    from gpu_cases import Sizes, cases
    from gpu_clock import measured_rates
    from gpu_inputs import PUBLISHED
    from gpu_rival import find_rival
    from gpu_speed import compare, measure
    from gpu_whole import suite_speed

    rates = measured_rates(clock)
    print(f"\ncopy {rates.copy / 1e9:.0f} GB/s, bf16 product {rates.product / 1e12:.0f} TFLOP/s", flush=True)
    whole = suite_speed(make, "cuda", clock)
    print(f"{whole.kernel}, {whole.what}: {whole.note or f'{whole.rate:,.0f} tokens/s'}", flush=True)
    todo = list(cases(make, PUBLISHED, Sizes(), find_rival()))
    speeds = []
    for case in todo:
        speeds.append(measure(case, clock, rates))
        took = speeds[-1].seconds
        print(f"{case.kernel}, {case.what}: {speeds[-1].note if took is None else f'{took * 1e3:.3f} ms'}", flush=True)
    # Last, since it tunes itself first, which takes minutes.
    return [whole, *(compare(case, speed, clock) for case, speed in zip(todo, speeds, strict=True))], rates


def _facts(device: torch.device, seed: int) -> dict[str, Any]:
    """What the numbers are of."""
    from importlib.metadata import PackageNotFoundError, version

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {
        "chip": torch.cuda.get_device_name() if device.type == "cuda" else "interpreter",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "seed": seed,
        "versions": {name: installed(name) for name in ("torch", "triton", "fla-core")} | {"cuda": torch.version.cuda},
    }


if __name__ == "__main__":
    sys.exit(main())
