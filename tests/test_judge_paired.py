"""The judge with a baseline: McNemar, the break bound, flips and churn."""

from __future__ import annotations

import pytest
from fixtures_judged import MakeRun, changed, compared
from hypothesis import given, settings
from hypothesis import strategies as st

from evalgate import stats
from evalgate.errors import ExitCode
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.verdict import CellVerdict, Reason, Status, Verdict
from evalgate.records import Outcome

WRONG = Outcome.WRONG
ERROR = Outcome.ERROR
FRONT = ("single", "front")


def front_of(verdict: Verdict) -> CellVerdict:
    """The verdict of ``single`` in the front band."""
    return next(cell for cell in verdict.cells if (cell.cell.task, cell.cell.band) == FRONT)


def codes(verdict: Verdict) -> set[str]:
    """Codes of the warnings."""
    return {warning.code for warning in verdict.warnings}


def test_a_run_against_its_own_twin_passes_without_headroom(demo: Policy, make_judged_run: MakeRun) -> None:
    """Two passes of one model that agree everywhere PASS; that nothing flipped is a warning, not an error."""
    verdict = compared(make_judged_run(demo), make_judged_run(demo, run_id="base"), demo)

    assert (verdict.status, verdict.flips) == (Status.PASS, [])
    assert verdict.churn is not None
    assert (verdict.churn.n, verdict.churn.lost, verdict.churn.gained) == (600, 0, 0)
    assert codes(verdict) == {"no-headroom"}
    assert front_of(verdict).baseline is not None
    assert verdict.baseline_run is not None
    assert verdict.baseline_run.run_id == "base"


@pytest.mark.parametrize(("breaks", "status"), [(3, Status.PASS), (4, Status.INCONCLUSIVE), (9, Status.BLOCK)])
def test_breaks_decide(demo: Policy, make_judged_run: MakeRun, breaks: int, status: Status) -> None:
    """At margin .08 three breaks pass; nine one way, p = .002 at .02/6, block, though 91 of 100 is above the bar."""
    run = make_judged_run(demo, profile="state-int8", answers={FRONT: {WRONG: range(breaks)}})
    verdict = compared(run, make_judged_run(demo, run_id="base"), demo)

    pair = front_of(verdict).baseline
    assert pair is not None
    assert (pair.k_baseline, pair.b, pair.c, pair.breaks, pair.breaks_max) == (100, breaks, 0, breaks, 3)
    assert pair.p_value == pytest.approx(0.5**breaks)
    assert pair.alpha == pytest.approx(0.02 / 6)
    assert (pair.status, verdict.status) == (status, status)


def test_a_regression_is_named_with_its_numbers(demo: Policy, make_judged_run: MakeRun) -> None:
    """A BLOCK by McNemar has its own reason code, and says breaks, gains, the integer and p."""
    run = make_judged_run(demo, profile="state-int8", answers={FRONT: {WRONG: range(12)}})
    verdict = compared(run, make_judged_run(demo, run_id="base", answers={FRONT: {WRONG: [99]}}), demo)

    assert (verdict.reason_code, verdict.exit_code) == (Reason.REGRESSION, ExitCode.BLOCK)
    assert front_of(verdict).absolute is Status.INCONCLUSIVE
    assert verdict.reason == (
        "BLOCK: single · 1024 · front recalled 88/100; broke 12 of the 99 answers that the baseline has right "
        "and gained 1, from 12 of 13 flips blocks (p = 0.0017)"
    )


def test_gains_do_not_buy_back_losses(demo: Policy, make_judged_run: MakeRun) -> None:
    """Four breaks and four gains leave recall where it was, and the break bound is still not met."""
    run = make_judged_run(demo, answers={FRONT: {WRONG: range(4)}})
    verdict = compared(run, make_judged_run(demo, run_id="base", answers={FRONT: {WRONG: range(4, 8)}}), demo)

    cell = front_of(verdict)
    assert cell.baseline is not None
    assert (cell.k, cell.baseline.k_baseline, cell.baseline.b, cell.baseline.c) == (96, 96, 4, 4)
    assert (cell.absolute, cell.status, verdict.status) == (Status.PASS, Status.INCONCLUSIVE, Status.INCONCLUSIVE)
    assert "broke 4, at most 3 may break" in verdict.reason


def test_pass_needs_the_bar_too(demo: Policy, make_judged_run: MakeRun) -> None:
    """A candidate that is as bad as its baseline does not pass for being no worse."""
    lost = {FRONT: {WRONG: range(8)}}
    verdict = compared(make_judged_run(demo, answers=lost), make_judged_run(demo, run_id="base", answers=lost), demo)

    cell = front_of(verdict)
    assert cell.baseline is not None
    assert (cell.baseline.status, cell.absolute, cell.status) == (
        Status.PASS,
        Status.INCONCLUSIVE,
        Status.INCONCLUSIVE,
    )


def test_garbage_does_not_widen_the_tolerance(demo: Policy, make_judged_run: MakeRun) -> None:
    """A candidate at 50% is held to the same integers as a good one, and blocks by both tests."""
    run = make_judged_run(demo, profile="state-int8", answers={FRONT: {WRONG: range(50)}})
    verdict = compared(run, make_judged_run(demo, run_id="base"), demo)

    cell = front_of(verdict)
    assert cell.baseline is not None
    assert (cell.pass_min, cell.block_max, cell.baseline.breaks_max) == (96, 80, 3)
    assert (cell.absolute, cell.baseline.status) == (Status.BLOCK, Status.BLOCK)
    assert verdict.reason_code is Reason.BELOW_BAR


def test_margin_that_the_seeds_cannot_show(demo: Policy, make_judged_run: MakeRun) -> None:
    """At margin .02 a hundred seeds show nothing, so the best word is INCONCLUSIVE, with the seeds it would take."""
    policy = changed(demo, baseline={"use": "required", "break_margin": 0.02})
    verdict = compared(make_judged_run(policy), make_judged_run(policy, run_id="base"), policy)

    cell = front_of(verdict)
    assert cell.baseline is not None
    assert (cell.baseline.breaks_max, cell.status, cell.n_needed) == (None, Status.INCONCLUSIVE, 149)
    assert "break-bound-unattainable" in codes(verdict)
    assert "100 seeds cannot show that at most 0.02 of the answers break" in verdict.reason


def test_margin_of_a_cell(demo: Policy, make_judged_run: MakeRun) -> None:
    """A margin on the cells overrides the one of the baseline section."""
    policy = changed(demo, cells=[{**demo.cells[0].model_dump(mode="json"), "break_margin": 0.05}])
    verdict = compared(make_judged_run(policy), make_judged_run(policy, run_id="base"), policy)

    pair = front_of(verdict).baseline
    assert pair is not None
    assert (pair.margin, pair.breaks_max) == (0.05, stats.breaks_max(100, 0.05, 0.05))


@pytest.mark.parametrize(
    ("own", "other", "counts"),
    [
        (ERROR, Outcome.CORRECT, (0, 0, 1)),
        (ERROR, WRONG, (0, 1, 0)),
        (Outcome.CORRECT, ERROR, (0, 1, 0)),
        (WRONG, ERROR, (0, 0, 1)),
        (ERROR, ERROR, (0, 1, 1)),
        (WRONG, Outcome.CORRECT, (1, 0, 1)),
        (Outcome.CORRECT, WRONG, (0, 1, 0)),
        (WRONG, Outcome.TRUNCATED, (0, 0, 0)),
    ],
)
def test_unknown_outcomes_are_worst_case_both_ways(
    demo: Policy, make_judged_run: MakeRun, own: Outcome, other: Outcome, counts: tuple[int, int, int]
) -> None:
    """An error of either run favours the candidate in McNemar (b, c) and is against it in the break bound."""
    run = make_judged_run(demo, answers={FRONT: {own: [7]}})
    verdict = compared(run, make_judged_run(demo, run_id="base", answers={FRONT: {other: [7]}}), demo)

    pair = front_of(verdict).baseline
    assert pair is not None
    assert (pair.b, pair.c, pair.breaks) == counts


def test_flips_are_listed_lost_ones_first(demo: Policy, make_judged_run: MakeRun) -> None:
    """Every answer that changed sides is listed with both answers; an error is no answer and no flip."""
    run = make_judged_run(demo, answers={("single", "back"): {WRONG: [3], ERROR: [9]}})
    base = make_judged_run(demo, run_id="base", answers={FRONT: {Outcome.EMPTY: [5]}})
    verdict = compared(run, base, demo)

    told = [(flip.kind, flip.seed, flip.cell.band, flip.candidate_outcome) for flip in verdict.flips]
    assert told == [("lost", 3, "back", "wrong"), ("gained", 5, "front", "correct")]
    lost, gained = verdict.flips
    assert (lost.expected, lost.baseline_answer, lost.candidate_answer) == ("amber tower", "amber tower", "wrong")
    assert (gained.baseline_answer, gained.candidate_answer, gained.depth) == ("", "amber tower", 0.1)
    assert verdict.churn is not None
    assert (verdict.churn.lost, verdict.churn.gained) == (1, 1)


@pytest.mark.parametrize(("flips", "warned"), [(2, False), (3, True)])
def test_churn_above_its_limit_warns(demo: Policy, make_judged_run: MakeRun, flips: int, warned: bool) -> None:
    """12 flips of 600 are at the limit of .02 and bear no warning; 18 are above it."""
    answers = {("single",): {WRONG: range(flips)}}
    gains = {("multikey@8",): {WRONG: range(flips)}}
    verdict = compared(
        make_judged_run(demo, answers=answers), make_judged_run(demo, run_id="base", answers=gains), demo
    )

    assert verdict.status is Status.PASS
    assert ("churn" in codes(verdict)) == warned


def test_floor_is_judged_on_the_baseline(demo: Policy, make_judged_run: MakeRun) -> None:
    """A candidate that lost everything blocks by its cells; a baseline that finds nothing is a broken set-up."""
    lost = {(): {WRONG: range(100)}}
    blocked = compared(
        make_judged_run(demo, profile="state-int8", answers=lost), make_judged_run(demo, run_id="base"), demo
    )
    broken = compared(make_judged_run(demo), make_judged_run(demo, run_id="base", answers=lost), demo)

    assert blocked.floor is not None
    assert (blocked.status, blocked.floor.status, blocked.floor.judged_on) == (Status.BLOCK, "ok", "baseline")
    assert (broken.status, broken.reason_code) == (Status.ERROR, Reason.FLOOR_BROKEN)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(Outcome.TRUNCATED, Reason.TOO_MANY_TRUNCATED), (Outcome.EMPTY, Reason.TOO_MANY_EMPTY)],
)
def test_cut_answers_are_an_error_only_where_the_baseline_has_them(
    demo: Policy, make_judged_run: MakeRun, outcome: Outcome, reason: Reason
) -> None:
    """A corrupted state loops until it is cut: a failure. Where the baseline is cut too the set-up is at fault."""
    cut = {("multikey@8", "back"): {outcome: range(30)}}
    other_cell = {("multikey@8", "front"): {outcome: range(3)}}
    run = make_judged_run(demo, profile="state-int8", answers=cut)

    failure = compared(run, make_judged_run(demo, run_id="base", answers=other_cell), demo)
    fault = compared(run, make_judged_run(demo, run_id="base", answers=cut), demo)

    assert failure.status is Status.BLOCK
    assert f"{outcome}-answers" in codes(failure)
    assert (fault.status, fault.reason_code) == (Status.ERROR, reason)
    assert "multikey@8 · 1024 · back" in fault.reason


def test_two_percent_cut_is_at_the_limit(demo: Policy, make_judged_run: MakeRun) -> None:
    """Exactly the limit is borne in both runs."""
    cut = {("multikey@8", "back"): {Outcome.TRUNCATED: range(2)}}
    verdict = compared(make_judged_run(demo, answers=cut), make_judged_run(demo, run_id="base", answers=cut), demo)

    assert verdict.status is Status.PASS


def test_guard_cells_are_not_compared(demo: Policy, make_judged_run: MakeRun) -> None:
    """The paired budget is for primary cells; a guard has only its bar."""
    rule = {"length": [1024], "band": ["front", "back"], "min": 0.90}
    cells = [{**rule, "task": "single"}, {**rule, "task": "multikey@8", "tier": "guard"}]
    policy = changed(demo, cells=cells)
    verdict = compared(make_judged_run(policy), make_judged_run(policy, run_id="base"), policy)

    for cell in verdict.cells:
        assert (cell.baseline is None) == (cell.tier == "guard")
    assert front_of(verdict).baseline is not None
    assert verdict.status is Status.PASS


@settings(deadline=None, max_examples=40)
@given(own=st.sets(st.integers(0, 99), max_size=30), other=st.sets(st.integers(0, 99), max_size=10))
def test_counts_are_those_of_the_sets(make_judged_run: MakeRun, own: set[int], other: set[int]) -> None:
    """Breaks and gains are set differences; k and the baseline's k add up; the lists hold the same flips."""
    policy = load_policy("demo")
    run = make_judged_run(policy, profile="state-int8", answers={FRONT: {WRONG: own}})
    verdict = compared(run, make_judged_run(policy, run_id="base", answers={FRONT: {WRONG: other}}), policy)

    cell = front_of(verdict)
    assert cell.baseline is not None
    assert (cell.baseline.b, cell.baseline.c) == (len(own - other), len(other - own))
    assert (cell.k, cell.baseline.k_baseline) == (100 - len(own), 100 - len(other))
    assert cell.k == cell.baseline.k_baseline - cell.baseline.b + cell.baseline.c
    assert {flip.seed for flip in verdict.flips if flip.kind == "lost"} == own - other
    assert {flip.seed for flip in verdict.flips if flip.kind == "gained"} == other - own
