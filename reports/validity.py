"""Whether the measurement means anything: the checks that the gate made before it looked at recall."""

from __future__ import annotations

from dataclasses import dataclass

from evalgate.gates.verdict import Verdict
from evalgate.reports import figures

_WORDS = {"ok": "ok", "failed": "FAILED", "not-applicable": "not applicable"}
_KINDS = {"ok": "pass", "failed": "error"}
_MARKS = {"pass": "✓", "error": "!", "plain": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One check, ready to print."""

    name: str
    status: str
    kind: str
    mark: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """All checks, in the order in which the gate made them."""

    rows: tuple[CheckRow, ...]
    sentence: str


def validity(verdict: Verdict | None) -> Validity:
    """List the checks that the verdict holds."""
    if verdict is None:
        return Validity(rows=(), sentence="No policy was applied, so nothing was checked.")
    rows = [_row(check.name, check.status, check.detail) for check in verdict.validity]
    failed = [row.name for row in rows if row.kind == "error"]
    sentence = (
        f"{figures.plural(len(failed), 'check')} failed: {figures.listing(failed)}."
        if failed
        else f"Every check that applies is met ({sum(row.kind == 'pass' for row in rows)} of {len(rows)} apply)."
    )
    return Validity(rows=tuple(rows), sentence=sentence)


def failed_checks(verdict: Verdict) -> tuple[CheckRow, ...]:
    """Only the checks that failed."""
    return tuple(_row(check.name, check.status, check.detail) for check in verdict.validity if check.status == "failed")


def _row(name: str, status: str, detail: str) -> CheckRow:
    kind = _KINDS.get(status, "plain")
    return CheckRow(
        name=name.replace("_", " ").replace("-", " "),
        status=_WORDS.get(status, status.replace("-", " ")),
        kind=kind,
        mark=_MARKS[kind],
        detail=detail,
    )
