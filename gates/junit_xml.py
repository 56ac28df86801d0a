"""The verdict for pipelines that read JUnit XML, written from the verdict alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from evalgate.gates.clean_text import clean
from evalgate.gates.verdict import CellVerdict, Flip, Status, Verdict
from evalgate.records import Cell

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
    for reach in verdict.effective_context:
        suite.add_property(f"effective_context {clean(reach.title)}", str(reach))
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
