"""The verdict in one word and one sentence, the few numbers beside it, and what to do next."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from evalgate.gates.verdict import Reason, Status, Verdict
from evalgate.reports import figures
from evalgate.reports.cells import KINDS, MARKS

INVALID = (Status.ERROR, Status.TAMPERED)
"""Verdicts that say nothing about recall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One number of the first look."""

    label: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something the reader should know that does not decide."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The verdict, ready to print."""

    word: str
    mark: str
    kind: str
    exit_code: str
    """``exit code 1``; empty without a verdict."""
    reason: str
    next_step: str
    facts: tuple[Fact, ...]
    notices: tuple[Notice, ...]


def headline(verdict: Verdict | None, facts: tuple[Fact, ...]) -> Headline:
    """The first thing that a reader sees."""
    if verdict is None:
        return Headline(
            word="NO VERDICT",
            mark="",
            kind="plain",
            exit_code="",
            reason="No policy was applied: this report shows what was measured, and approves nothing.",
            next_step=next_step(None),
            facts=facts,
            notices=(),
        )
    return Headline(
        word=verdict.status.value,
        mark=MARKS[verdict.status],
        kind=KINDS[verdict.status],
        exit_code=f"exit code {int(verdict.exit_code)}",
        reason=_sentence(verdict),
        next_step=next_step(verdict),
        facts=facts,
        notices=tuple(Notice(code=item.code, detail=item.detail) for item in verdict.warnings),
    )


def _sentence(verdict: Verdict) -> str:
    """The reason without the word that stands above it."""
    text = verdict.reason.removeprefix(f"{verdict.status.value}: ")
    return text + ("" if text.endswith((".", "!", "?")) else ".")


def tallied(verdict: Verdict) -> str:
    """``33 pass, 2 open, 1 block``: how the cells fell."""
    if verdict.status in INVALID:
        return "none judged"
    words = {Status.PASS: "pass", Status.INCONCLUSIVE: "open", Status.BLOCK: "block"}
    found = Counter(item.status for item in verdict.cells)
    named = [f"{found[status]} {word}" for status, word in words.items() if found[status]]
    return ", ".join(named) or "none judged"


def rule(verdict: Verdict) -> str:
    """How cells make a verdict, in a few words."""
    if verdict.status in INVALID:
        return "the run is not valid"
    if verdict.reason_code is Reason.NO_REGRESSION_SEEN:
        return "a smoke policy never passes"
    return "one that blocks is enough" if verdict.status is Status.BLOCK else "every one must pass"


def next_step(verdict: Verdict | None) -> str:
    """One instruction that fits the verdict."""
    if verdict is None:
        return "Judge this run: evalgate gate RUN --policy POLICY."
    if verdict.status is Status.PASS:
        return "This run may ship under this policy."
    if verdict.status is Status.BLOCK:
        return "Do not ship. See which needles were lost; try a milder profile, or fix the path that lost them."
    if verdict.status is Status.INCONCLUSIVE:
        return _ask_more(verdict)
    if verdict.status is Status.TAMPERED:
        return "Trust nothing in this run: restore its files, or run again into a new folder."
    return "Nothing can be said about recall until this is mended; then run again."


def _ask_more(verdict: Verdict) -> str:
    if verdict.reason_code is Reason.NO_REGRESSION_SEEN:
        return "A smoke run can only block: judge a full run by a release policy before anything ships."
    needed = [item.n_needed for item in verdict.cells if item.status is Status.INCONCLUSIVE and item.n_needed]
    if not needed:
        return "Nothing is proven either way: raise --seeds to the policy's next look, or lower the compression."
    return (
        f"Nothing is proven either way: at the observed shares about {figures.count(max(needed))} seeds would pass, "
        f"under a policy whose look is that large."
    )
