"""Guard cells, smoke policies and the floor."""

from __future__ import annotations

import pytest
from fixtures_judged import MakeRun, changed, compared, judged

from evalgate import stats
from evalgate.errors import ExitCode, MismatchError
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.verdict import CellVerdict, Reason, Status, Verdict
from evalgate.records import Outcome

WRONG = Outcome.WRONG


def cell_of(verdict: Verdict, task: str, band: str) -> CellVerdict:
    """The verdict of a task and band."""
    return next(cell for cell in verdict.cells if (cell.cell.task, cell.cell.band) == (task, band))


def guarded(policy: Policy, tier: str = "guard") -> Policy:
    """The demo policy whose multikey cells are guards."""
    rule = {"length": [1024], "band": ["front", "middle", "back"], "min": 0.90}
    return changed(policy, cells=[{**rule, "task": "single"}, {**rule, "task": "multikey@8", "tier": tier}])


def test_guard_cells_block_at_their_own_seeds(demo: Policy, make_judged_run: MakeRun) -> None:
    """A guard counts the first 60 seeds, splits its own budget, and blocks; what comes later is not its look."""
    policy = guarded(demo)
    block_max = stats.block_max(60, 0.90, stats.exact(0.01) / 3)
    assert block_max is not None
    early = {("multikey@8", "front"): {WRONG: range(60 - block_max)}}
    late = {("multikey@8", "front"): {WRONG: range(60, 100)}}

    verdict = judged(make_judged_run(policy, answers=early), policy)
    spared = judged(make_judged_run(policy, answers=late), policy)

    cell = cell_of(verdict, "multikey@8", "front")
    assert (cell.n, cell.k, cell.block_max, cell.pass_min) == (60, block_max, block_max, None)
    assert (cell.status, verdict.status) == (Status.BLOCK, Status.BLOCK)
    assert (cell_of(spared, "multikey@8", "front").k, spared.status) == (60, Status.PASS)


def test_guard_cells_never_pass_nor_hold(demo: Policy, make_judged_run: MakeRun) -> None:
    """A guard at 90% neither blocks nor keeps the run from passing, and says so."""
    policy = guarded(demo)
    verdict = judged(make_judged_run(policy, answers={("multikey@8",): {WRONG: range(6)}}), policy)

    cell = cell_of(verdict, "multikey@8", "front")
    assert (verdict.status, cell.status) == (Status.PASS, Status.INCONCLUSIVE)
    assert cell.reason.startswith("recalled 54/60; only blocks: at most ")
    assert "no guard cell blocks" in verdict.reason


def test_guard_budget_is_its_own(demo: Policy, make_judged_run: MakeRun) -> None:
    """Three primary cells split .02 by three once the other three are guards."""
    policy = guarded(demo)
    verdict = judged(make_judged_run(policy), policy)

    assert cell_of(verdict, "single", "front").block_max == stats.block_max(100, 0.90, stats.exact(0.02) / 3)
    assert cell_of(verdict, "multikey@8", "front").block_max == stats.block_max(60, 0.90, stats.exact(0.01) / 3)


def test_guards_need_their_seeds(demo: Policy, make_judged_run: MakeRun) -> None:
    """A run with fewer seeds than a guard counts is ERROR, not a guard that saw too little to block."""
    policy = changed(guarded(demo), looks=[50])
    verdict = judged(make_judged_run(policy), policy)

    assert (verdict.status, verdict.reason_code) == (Status.ERROR, Reason.TOO_FEW_SEEDS)
    assert "judges from 60" in verdict.reason


def test_smoke_never_passes(make_judged_run: MakeRun) -> None:
    """A perfect smoke run is INCONCLUSIVE, no-regression-seen; its policy only warns, so exit 0."""
    policy = load_policy("smoke")
    verdict = judged(make_judged_run(policy), policy)

    assert {warning.code for warning in verdict.warnings} == {"block-unattainable"}
    assert (verdict.status, verdict.reason_code) == (Status.INCONCLUSIVE, Reason.NO_REGRESSION_SEEN)
    assert verdict.exit_code is ExitCode.PASS
    assert verdict.reason == ("INCONCLUSIVE: no regression seen in 9 cells at 2 seeds; a smoke policy never passes")


def test_smoke_never_passes_at_any_n(demo: Policy, make_judged_run: MakeRun) -> None:
    """Even with seeds enough for PASS, a smoke policy's best word is INCONCLUSIVE; it still blocks."""
    policy = changed(demo, kind="smoke")

    assert judged(make_judged_run(policy), policy).reason_code is Reason.NO_REGRESSION_SEEN
    run = make_judged_run(policy, profile="state-int8", answers={("back",): {WRONG: range(50)}})
    blocked = judged(run, policy)
    assert (blocked.status, blocked.exit_code) == (Status.BLOCK, ExitCode.BLOCK)


@pytest.mark.parametrize(("misses", "status"), [(12, "ok"), (13, "broken")])
def test_floor_on_an_uncompressed_run(demo: Policy, make_judged_run: MakeRun, misses: int, status: str) -> None:
    """``single`` at the shortest length on profile full: 88 of 100 stands, 87 means the set-up is broken."""
    verdict = judged(make_judged_run(demo, answers={("single", "middle"): {WRONG: range(misses)}}), demo)

    assert verdict.floor is not None
    assert (verdict.floor.status, verdict.floor.judged_on, verdict.floor.length) == (status, "run", 1024)
    assert {band.k_max for band in verdict.floor.bands} == {87}
    assert (verdict.reason_code is Reason.FLOOR_BROKEN) == (status == "broken")


def test_floor_wins_over_block(demo: Policy, make_judged_run: MakeRun) -> None:
    """A model that finds nothing without compression has a broken set-up: ERROR, no word on its recall."""
    verdict = judged(make_judged_run(demo, answers={(): {WRONG: range(100)}}), demo)

    assert (verdict.status, verdict.reason_code) == (Status.ERROR, Reason.FLOOR_BROKEN)
    assert "the set-up is broken: on the run, single at length 1024: front 0/100" in verdict.reason


def test_floor_is_not_judged_on_a_compressed_run(demo: Policy, make_judged_run: MakeRun) -> None:
    """A candidate's own loss is judged by its cells; without a baseline the floor is a printed warning."""
    run = make_judged_run(demo, profile="state-int8", answers={("single",): {WRONG: range(50)}})
    verdict = judged(run, demo)

    assert verdict.floor is not None
    assert (verdict.floor.status, verdict.status) == ("not-judged", Status.BLOCK)
    assert "floor-not-judged" in {warning.code for warning in verdict.warnings}


def test_floor_off(demo: Policy, make_judged_run: MakeRun) -> None:
    """``floor: null`` judges no floor and warns of none."""
    policy = changed(demo, validity={"floor": None})
    verdict = judged(make_judged_run(policy, answers={("single",): {WRONG: range(13)}}), policy)

    assert verdict.floor is not None
    assert (verdict.floor.status, verdict.status) == ("off", Status.INCONCLUSIVE)
    assert verdict.warnings == []


def test_floor_without_single_is_refused(demo: Policy, make_judged_run: MakeRun) -> None:
    """A floor on a suite that has no ``single`` is a slip of the policy: exit 2, with what to write."""
    rule = {"task": "multikey@8", "length": 1024, "band": ["front", "back"], "min": 0.90}
    policy = changed(demo, cells=[rule])

    with pytest.raises(MismatchError, match=r"set validity\.floor: null"):
        judged(make_judged_run(policy), policy)


def test_a_smoke_policy_passes_nothing_against_a_baseline_either(demo: Policy, make_judged_run: MakeRun) -> None:
    """No break at all, and the comparison still says no more than the policy may."""
    policy = changed(demo, kind="smoke")
    verdict = compared(make_judged_run(policy, profile="state-int8"), make_judged_run(policy, run_id="base"), policy)

    assert verdict.status is Status.INCONCLUSIVE
    assert {cell.baseline and cell.baseline.status for cell in verdict.cells} == {Status.INCONCLUSIVE}


def test_an_unknown_answer_does_not_break_the_floor(demo: Policy, make_judged_run: MakeRun) -> None:
    """87 of 100 and one error: the error may have been right, so nothing is shown to be broken."""
    answers = {("single", "middle"): {WRONG: range(12), Outcome.ERROR: [12]}}
    floor = judged(make_judged_run(demo, answers=answers), demo).floor

    assert floor is not None
    assert floor.status == "ok"


def test_the_floor_is_the_shortest_length(make_judged_run: MakeRun) -> None:
    """A longer length may be lost for other reasons; the floor asks whether anything can be retrieved at all."""
    policy = load_policy("serving-default@1.0.0")
    broken = judged(make_judged_run(policy, answers={("single", 1024, "front"): {WRONG: range(100)}}), policy)
    stands = judged(make_judged_run(policy, answers={("single", 8192, "front"): {WRONG: range(100)}}), policy)

    assert broken.floor is not None
    assert stands.floor is not None
    assert (broken.floor.status, broken.floor.length, stands.floor.status) == ("broken", 1024, "ok")
