"""One check as the rules see it: what is shown, the reason code if it failed, and the cells at fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from evalgate.gates.verdict import Check, Reason
from evalgate.records import Cell

SHOWN = 3
"""Items that a message names before it counts the rest."""


class Finding(NamedTuple):
    """A check, the reason that the verdict has if it failed, and the cells at fault (none: the whole run)."""

    check: Check
    reason: Reason | None = None
    cells: frozenset[Cell] = frozenset()

    @property
    def failed(self) -> bool:
        """Whether the run is invalid by this check."""
        return self.check.status == "failed"


def ok(name: str, detail: str) -> Finding:
    """Build a finding that is fine."""
    return Finding(Check(name=name, status="ok", detail=detail))


def not_applicable(name: str, detail: str) -> Finding:
    """Build a finding that had nothing to look at; ``detail`` says why."""
    return Finding(Check(name=name, status="not-applicable", detail=detail))


def failed(name: str, reason: Reason, detail: str, cells: Iterable[Cell] = ()) -> Finding:
    """Build a finding that makes the verdict ERROR; ``detail`` says what was found, expected and what to do."""
    return Finding(Check(name=name, status="failed", detail=detail), reason, frozenset(cells))


def listed(items: Sequence[object]) -> str:
    """Name the first few of ``items`` and count the rest."""
    named = "; ".join(str(item) for item in items[:SHOWN])
    return named if len(items) <= SHOWN else f"{named}; and {len(items) - SHOWN} more"
