"""The summary on a terminal: counts, verdict, next step, and nothing that acts."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from evalgate.gates.verdict import Notice
from evalgate.reports.terminal import summary


def printed(verdict: Any, width: int = 100) -> str:
    """What a terminal that knows no colours would show."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(summary(verdict))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("kind", ["pass", "block", "open", "error"])
def test_summary_has_every_count_and_the_verdict(report_cases: dict[str, Any], kind: str) -> None:
    """k/n of every cell, the verdict with its reason, and the next step."""
    verdict = report_cases[kind].verdict
    text = printed(verdict)

    assert all(f"{cell.k}/{cell.n}" in text for cell in verdict.cells)
    assert verdict.status in text
    assert "Next:" in text


def test_summary_shows_losses_beside_counts(report_cases: dict[str, Any]) -> None:
    """Lost and gained answers stand with their cell, and fit 80 columns."""
    text = printed(report_cases["block"].verdict, width=80)

    assert "✕ 132/400 −268 +0" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_summary_is_inert(report_cases: dict[str, Any]) -> None:
    """Markup and escape sequences that a verdict quotes are plain characters."""
    hostile = "[bold]\x1b]0;owned\x07 [link=https://example.com]x[/link]"
    verdict = report_cases["pass"].verdict.model_copy(
        update={"reason": f"PASS: {hostile}", "warnings": [Notice(code="note", detail=hostile)]}
    )
    text = printed(verdict)

    assert "\x1b" not in text
    assert "[bold]‹U+001B›]0;owned‹U+0007›" in text
    assert text.count("[link=https://example.com]x[/link]") == 2
