"""The verdict for pipelines: JUnit XML, and Markdown for a job summary or a comment.

Both are written from the verdict alone, so neither can say anything else than the exit code does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from evalgate.gates.clean_text import clean, markdown_safe
from evalgate.gates.explanation import tell_bar
from evalgate.gates.verdict import CellVerdict, Flip, RunRef, Status, Verdict
from evalgate.records import Cell

MARKDOWN_CAP = 900 * 1024
"""Bytes; GitHub drops a job summary above 1024 KiB."""
FLIPS_SHOWN = 20
ANSWER_SHOWN = 60


def junit(verdict: Verdict) -> str:
    """Return JUnit XML with one test case per cell.

    BLOCK and INCONCLUSIVE are failures of that type, ERROR is an error. INCONCLUSIVE is skipped where the policy only
    warns; a guard cell that does not block is fine. So the file is red exactly when the exit code is not 0.
    """
    suite = TestSuite(clean(f"evalgate {verdict.policy.name}@{verdict.policy.version}"))
    suite.add_property("verdict", str(verdict.status))
    suite.add_property("reason", clean(verdict.reason))
    suite.add_property("reason_code", str(verdict.reason_code))
    suite.add_property("run", clean(verdict.run.run_id))
    suite.add_property("baseline", clean(verdict.baseline_run.run_id) if verdict.baseline_run else "none")
    suite.add_property("policy_sha256", verdict.policy.digest)
    lost: dict[Cell, list[Flip]] = defaultdict(list)
    for flip in verdict.flips:
        if flip.kind == "lost":
            lost[flip.cell].append(flip)
    for cell in verdict.cells:
        suite.add_testcase(_test_case(verdict, cell, lost[cell.cell]))
    document = JUnitXml("evalgate")
    document.add_testsuite(suite)
    document.update_statistics()
    text: bytes = document.tostring()
    return text.decode("utf-8")


def _test_case(verdict: Verdict, cell: CellVerdict, lost: Sequence[Flip]) -> TestCase:
    case = TestCase(clean(str(cell.cell)), classname=clean(f"evalgate.{verdict.run.suite.name}.{cell.cell.task}"))
    reason = clean(cell.reason)
    if cell.status is Status.ERROR:
        case.result = [Error(f"{clean(verdict.reason)} ({reason})", type_=str(verdict.reason_code))]
    elif cell.status is Status.BLOCK:
        case.result = [Failure(reason, type_="BLOCK")]
    elif cell.status is Status.INCONCLUSIVE and cell.tier == "primary":
        skipped = verdict.on_inconclusive == "warn"
        case.result = [Skipped(reason) if skipped else Failure(reason, type_="INCONCLUSIVE")]
    case.system_out = "\n".join([reason, *(_tell_flip(flip) for flip in lost[:FLIPS_SHOWN])])
    return case


def _tell_flip(flip: Flip) -> str:
    expected, answer = clean(flip.expected, ANSWER_SHOWN), clean(flip.candidate_answer, ANSWER_SHOWN)
    return f"lost seed {flip.seed} at depth {flip.depth:.3f}: expected {expected!r}, answered {answer!r}"


def markdown(verdict: Verdict) -> str:
    """Return GitHub Markdown of at most ``MARKDOWN_CAP`` bytes: verdict and reason first, cells that decide on top."""
    baseline = "no baseline" if verdict.baseline_run is None else f"baseline {_run(verdict.baseline_run)}"
    policy = f"{_code(f'{verdict.policy.name}@{verdict.policy.version}')} ({_code(verdict.policy.digest[:12])})"
    lines = [
        f"## evalgate: {verdict.status}",
        "",
        markdown_safe(verdict.reason),
        "",
        f"Run {_run(verdict.run)}, {baseline}.",
        f"Policy {policy}, exit code {int(verdict.exit_code)}.",
        *_checks(verdict),
        *_warnings(verdict),
        *_cells(verdict),
        *_flips(verdict.flips),
    ]
    return _fit(lines, MARKDOWN_CAP)


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


def _cells(verdict: Verdict) -> list[str]:
    if verdict.status is Status.ERROR:
        return []  # an invalid run says nothing about the model, so no recall is shown
    order = list(Status)
    rows = [_row(cell) for cell in sorted(verdict.cells, key=lambda cell: order.index(cell.status))]
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


def _fit(lines: Iterable[str], cap: int) -> str:
    kept: list[str] = []
    size = 0
    lines = list(lines)
    note = "\n… {} more lines are left out; the verdict file and the report have them.\n"
    for line in lines:
        size += len(line.encode()) + 1
        if size > cap - len(note.encode()) - 20:
            return "\n".join(kept) + "\n" + note.format(len(lines) - len(kept))
        kept.append(line)
    return "\n".join(kept) + "\n"


def _run(run: RunRef) -> str:
    return f"{_code(run.run_id)} ({_code(run.model)}, profile {_code(run.profile.name)})"


def _code(text: str) -> str:
    return f"<code>{markdown_safe(text, ANSWER_SHOWN)}</code>"


def _integer(value: int | None) -> str:
    return "never" if value is None else str(value)
