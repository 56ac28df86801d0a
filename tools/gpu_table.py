"""What `gpu_check.py` found, as a JSON file and as a Markdown table."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_clock import Rates
from gpu_compare import Check
from gpu_speed import Speed

HEAD = ("kernel", "what", "median", "rate", "of copy", "of product", "fla-core", "target")


def document(checks: Sequence[Check], speeds: Sequence[Speed], rates: Rates | None, **facts: object) -> dict[str, Any]:
    """Everything, in types that JSON has; an error that is no number is null."""
    told = [
        check._asdict() | {"worst": check.worst if math.isfinite(check.worst) else None, "ok": check.ok}
        for check in checks
    ]
    return {
        **facts,
        "right": all(check.ok for check in checks),
        "targets_met": None if not speeds else all(speed.met is not False for speed in speeds),
        "rates": None if rates is None else rates._asdict(),
        "checks": told,
        "speeds": [speed._asdict() for speed in speeds],
    }


def write(folder: Path, body: dict[str, Any]) -> Path:
    """The file of this chip; an older one of it is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^a-z0-9]+', '-', body['chip'].lower()).strip('-')}.json"
    path.write_text(json.dumps(body, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path


def markdown(speeds: Sequence[Speed]) -> str:
    """A table for the README, one line for each thing that was measured."""
    rows = [HEAD, ("---", "---", *["---:"] * (len(HEAD) - 2)), *(_cells(speed) for speed in speeds)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(speed: Speed) -> tuple[str, ...]:
    if speed.seconds is None:
        return (speed.kernel, speed.what, speed.note, *[""] * (len(HEAD) - 3))
    rival = "" if speed.rival_seconds is None else f"{_time(speed.rival_seconds)} ({_ratio(speed)})"
    if speed.copy_seconds is not None:
        rival = f"copy: {_time(speed.copy_seconds)}"
    return (
        speed.kernel,
        speed.what,
        _time(speed.seconds),
        f"{_rounded(speed.rate or 0)} {speed.unit}",
        f"{speed.of_copy:.0%}" if speed.of_copy is not None else "",
        f"{speed.of_product:.0%}" if speed.of_product else "",
        rival or speed.note,
        {True: "met", False: "MISSED", None: ""}[speed.met],
    )


def _ratio(speed: Speed) -> str:
    assert speed.rival_seconds is not None, "both were measured"
    assert speed.seconds is not None, "both were measured"
    return f"{speed.rival_seconds / speed.seconds:.2f}x"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def _rounded(rate: float) -> str:
    """Three digits that say something: ``12.3M``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if rate >= size:
            return f"{rate / size:.3g}{letter}"
    return f"{rate:.3g}"
