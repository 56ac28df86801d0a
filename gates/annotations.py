"""Annotations of a GitHub job: the verdict and its worst cells as workflow commands.

GitHub shows at most ten of a level in one step, so the worst come first and the rest is in the summary.
"""

from __future__ import annotations

from fractions import Fraction

from evalgate.gates.clean_text import clean
from evalgate.gates.verdict import CellVerdict, Status, Verdict

MOST = 10


def commands(verdict: Verdict) -> list[str]:
    """Workflow commands, none where the exit code is 0."""
    if not verdict.exit_code:
        return []
    shown = [command(verdict.status, f"evalgate {verdict.status}", verdict.reason)]
    deciding = [item for item in verdict.cells if item.status is verdict.status and verdict.status is not Status.ERROR]
    worst = sorted(deciding, key=_recall)[: MOST - 1]
    return shown + [command(item.status, f"evalgate {item.status} {item.cell}", item.reason) for item in worst]


def command(status: str, title: str, message: str) -> str:
    """One workflow command; what would end it or start another is escaped."""
    level = "warning" if status == "INCONCLUSIVE" else "error"
    return f"::{level} title={_property(clean(title))}::{_data(clean(message))}"


def _recall(item: CellVerdict) -> Fraction:
    return Fraction(item.k, item.n) if item.n else Fraction(0)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
