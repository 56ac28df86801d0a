"""The verdict for people who read Markdown: the summary of a job, and the comment on a change.

Both are written from the verdict alone, so neither can say anything else than the exit code does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from evalgate.gates.clean_text import markdown_safe
from evalgate.gates.explanation import tell_bar
from evalgate.gates.verdict import CellVerdict, EffectiveContext, Flip, RunRef, Status, Verdict

SUMMARY_BYTES = 900 * 1024
"""GitHub drops a job summary above 1024 KiB."""
COMMENT_CHARACTERS = 60_000
"""GitHub refuses a comment above 65,536 characters."""
MARKER = "<!-- evalgate -->"
"""First line of a comment, by which the next one of the same change finds it."""
FLIPS_SHOWN = 20
REACHES_SHOWN = 40
CELLS_OPEN = 60
"""Cells that stand above everything else in a comment, the worst first."""
ANSWER_SHOWN = 60
NOTE = "\n… {} more lines are left out; the verdict file and the report have them.\n"


def summary(verdict: Verdict) -> str:
    """Return the summary of a job, at most ``SUMMARY_BYTES`` long: verdict and reason first, what decides on top."""
    lines = [
        *_head(verdict),
        *_checks(verdict),
        *_warnings(verdict),
        *_reach(verdict.effective_context),
        *_cells(verdict, verdict.cells),
        *_flips(verdict.flips),
    ]
    return _fit(lines, SUMMARY_BYTES, lambda line: len(line.encode()))


def comment(verdict: Verdict) -> str:
    """Return a comment of at most ``COMMENT_CHARACTERS``: what does not pass is open, what passes is folded."""
    order = list(Status)
    failing = [item for item in verdict.cells if item.status is not Status.PASS]
    failing.sort(key=lambda item: order.index(item.status))
    passing = [item for item in verdict.cells if item.status is Status.PASS]
    title = f"{len(passing)} cells pass"
    opened = [
        MARKER,
        *_head(verdict),
        *_checks(verdict),
        *(_cells(verdict, failing[:CELLS_OPEN]) if failing else []),
        *_reach(verdict.effective_context),
        *_warnings(verdict),
        *(_cells(verdict, failing[CELLS_OPEN:]) if failing[CELLS_OPEN:] else []),
        *_flips(verdict.flips),
    ]
    folded = ["", f"<details><summary>{title}</summary>", *_cells(verdict, passing)]
    text = _fit(opened, COMMENT_CHARACTERS, len)
    if passing and verdict.status is not Status.ERROR and len(text) < COMMENT_CHARACTERS // 2:
        text += _fit(folded, COMMENT_CHARACTERS - len(text) - len(FOLD_END), len) + FOLD_END
    return text


FOLD_END = "\n</details>\n"


def _head(verdict: Verdict) -> list[str]:
    baseline = "no baseline" if verdict.baseline_run is None else f"baseline {_run(verdict.baseline_run)}"
    policy = f"{_code(f'{verdict.policy.name}@{verdict.policy.version}')} ({_code(verdict.policy.digest[:12])})"
    source = verdict.policy_source
    read = "" if source is None else f", read from {_code(source.ref)} at {_code(source.commit[:12])}"
    return [
        f"## evalgate: {verdict.status}",
        "",
        markdown_safe(verdict.reason),
        "",
        f"Run {_run(verdict.run)}, {baseline}.",
        f"Policy {policy}{read}, exit code {int(verdict.exit_code)}.",
    ]


def _reach(contexts: Sequence[EffectiveContext]) -> list[str]:
    if not contexts:
        return []
    # The shortest first: those are what a reader has to know, and the table must leave room for cells.
    order = sorted(contexts, key=lambda one: one.tokens or 0)
    rows = [f"| {markdown_safe(one.title)} | {one} |" for one in order[:REACHES_SHOWN]]
    rows += [f"| {len(order) - REACHES_SHOWN} more | |"] if len(order) > REACHES_SHOWN else []
    return ["", "### Effective context", "", "| task | every band passes up to |", "|---|---|", *rows]


def _checks(verdict: Verdict) -> list[str]:
    failed = [check for check in verdict.validity if check.status == "failed"]
    if not failed:
        return []
    rows = [f"| {_code(check.name)} | {markdown_safe(check.detail)} |" for check in failed]
    return ["", "### Not valid", "", "| check | found |", "|---|---|", *rows]


def _warnings(verdict: Verdict) -> list[str]:
    if not verdict.warnings:
        return []
    return ["", "### Warnings", "", *(f"- {_code(w.code)}: {markdown_safe(w.detail)}" for w in verdict.warnings)]


def _cells(verdict: Verdict, cells: Sequence[CellVerdict]) -> list[str]:
    if verdict.status is Status.ERROR:
        return []  # an invalid run says nothing about the model, so no recall is shown
    order = list(Status)
    rows = [_row(cell) for cell in sorted(cells, key=lambda cell: order.index(cell.status))]
    return [
        "",
        f"### Cells at {verdict.n} seeds",
        "",
        "| | cell | correct | 95% interval | bar | PASS from | BLOCK to | breaks |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
    ]


def _row(cell: CellVerdict) -> str:
    interval = "" if cell.interval is None else f"{cell.interval.lower:.3f} to {cell.interval.upper:.3f}"
    pair = cell.baseline
    breaks = "" if pair is None else f"{pair.breaks} (at most {_integer(pair.breaks_max)})"
    unknown = cell.errors + cell.missing
    correct = f"{cell.k}/{cell.n}" + (f" ({unknown} unknown)" if unknown else "")
    words = (
        f"**{cell.status}**" if cell.tier == "primary" or cell.status is Status.BLOCK else "guard",
        markdown_safe(str(cell.cell)),
        correct,
        interval,
        tell_bar(cell.bar),
        _integer(cell.pass_min),
        _integer(cell.block_max),
        breaks,
    )
    return f"| {' | '.join(words)} |"


def _flips(flips: Sequence[Flip]) -> list[str]:
    lost = [flip for flip in flips if flip.kind == "lost"]
    if not lost:
        return []
    rows = [
        f"| {markdown_safe(str(flip.cell))} | {flip.seed} | {flip.depth:.3f} | {_code(flip.expected)} "
        f"| {_code(flip.candidate_answer)} |"
        for flip in lost[:FLIPS_SHOWN]
    ]
    title = f"### Answers that the baseline had right and this run lost ({len(lost)})"
    more = [f"{len(lost) - FLIPS_SHOWN} more are in the report."] if len(lost) > FLIPS_SHOWN else []
    return ["", title, "", "| cell | seed | depth | expected | answered |", "|---|---|---|---|---|", *rows, "", *more]


def _fit(lines: Iterable[str], cap: int, measure: Callable[[str], int]) -> str:
    """``lines`` up to ``cap``, with a note of how many more there are."""
    lines = list(lines)
    spare = cap - measure(NOTE) - 20
    kept: list[str] = []
    size = 0
    for line in lines:
        size += measure(line) + 1
        if size > spare:
            return "\n".join(kept) + "\n" + NOTE.format(len(lines) - len(kept))
        kept.append(line)
    return "\n".join(kept) + "\n"


def _run(run: RunRef) -> str:
    return f"{_code(run.run_id)} ({_code(run.model)}, profile {_code(run.profile.name)})"


def _code(text: str) -> str:
    return f"<code>{markdown_safe(text, ANSWER_SHOWN)}</code>"


def _integer(value: int | None) -> str:
    return "never" if value is None else str(value)
