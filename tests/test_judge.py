"""The judge on one run: bars per cell, looks, and the order of verdicts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from fixtures_judged import MakeRun, changed, judged
from hypothesis import given, settings
from hypothesis import strategies as st

from evalgate import stats
from evalgate.errors import ExitCode, MismatchError
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.verdict import CellVerdict, Reason, Status, Verdict, worst
from evalgate.records import Outcome

WRONG = Outcome.WRONG


def cell_of(verdict: Verdict, task: str, band: str) -> CellVerdict:
    """The verdict of a task and band."""
    return next(cell for cell in verdict.cells if (cell.cell.task, cell.cell.band) == (task, band))


def test_a_model_that_recalls_everything_passes(demo: Policy, make_judged_run: MakeRun) -> None:
    """Every cell at 100/100 is PASS, exit 0, with an exact lower bound and not 1.000."""
    verdict = judged(make_judged_run(demo), demo)

    assert (verdict.status, verdict.reason_code, verdict.exit_code) == (Status.PASS, Reason.ALL_PASSED, ExitCode.PASS)
    assert verdict.n == 100
    assert verdict.reason.startswith("PASS: all 6 cells pass at 100 seeds; closest: ")
    for cell in verdict.cells:
        assert (cell.k, cell.n, cell.pass_min, cell.status) == (100, 100, 96, Status.PASS)
        assert cell.lower_bound == pytest.approx(0.05 ** (1 / 100))
        assert cell.interval is not None
        assert cell.interval.lower < 1


def test_a_model_that_recalls_nothing_blocks(demo: Policy, make_judged_run: MakeRun) -> None:
    """0 of n is a measurement and not a missing value: BLOCK, exit 1."""
    verdict = judged(make_judged_run(demo, profile="state-int8", answers={(): {WRONG: range(100)}}), demo)

    assert (verdict.status, verdict.reason_code, verdict.exit_code) == (Status.BLOCK, Reason.BELOW_BAR, ExitCode.BLOCK)
    assert verdict.reason.startswith("BLOCK: every cell (6 of 6 cells); worst: single · 1024 · front recalled 0/100; ")
    for cell in verdict.cells:
        assert (cell.k, cell.status) == (0, Status.BLOCK)
        assert cell.interval is not None
        assert cell.interval.lower == 0
        assert cell.lower_bound == 0


@pytest.mark.parametrize(
    ("misses", "status"),
    [(4, Status.PASS), (5, Status.INCONCLUSIVE), (19, Status.INCONCLUSIVE), (20, Status.BLOCK)],
)
def test_the_integers_decide(demo: Policy, make_judged_run: MakeRun, misses: int, status: Status) -> None:
    """At 100 seeds and six cells 96 passes, 95 and 81 are open, 80 blocks."""
    verdict = judged(make_judged_run(demo, answers={("multikey@8", "back"): {WRONG: range(misses)}}), demo)

    cell = cell_of(verdict, "multikey@8", "back")
    assert (cell.pass_min, cell.block_max) == (96, 80)
    assert (cell.k, cell.status, verdict.status) == (100 - misses, status, status)


def test_one_weak_band_is_not_averaged_away(demo: Policy, make_judged_run: MakeRun) -> None:
    """Front 100, middle 70, back 100 has a mean of 90 and is BLOCK naming the middle."""
    run = make_judged_run(demo, profile="state-int8", answers={("middle",): {WRONG: range(30)}})
    verdict = judged(run, demo)

    assert sum(cell.k for cell in verdict.cells) / sum(cell.n for cell in verdict.cells) == 0.9
    assert verdict.status is Status.BLOCK
    assert verdict.reason == (
        "BLOCK: middle of every task (2 of 6 cells); "
        "worst: single · 1024 · middle recalled 70/100; at most 80 blocks at bar 0.90"
    )


def test_one_cell_is_named_with_its_numbers(demo: Policy, make_judged_run: MakeRun) -> None:
    """A single deciding cell is the whole sentence."""
    verdict = judged(make_judged_run(demo, answers={("multikey@8", "middle"): {WRONG: range(29)}}), demo)

    assert verdict.reason == "BLOCK: multikey@8 · 1024 · middle recalled 71/100; at most 80 blocks at bar 0.90"


def test_undecided_holds_and_says_how_many_seeds_would_do(demo: Policy, make_judged_run: MakeRun) -> None:
    """94 of 100 is INCONCLUSIVE, exit 3, with the seeds at which .94 would pass."""
    verdict = judged(make_judged_run(demo, answers={("single", "back"): {WRONG: range(6)}}), demo)

    cell = cell_of(verdict, "single", "back")
    assert (verdict.status, verdict.reason_code) == (Status.INCONCLUSIVE, Reason.UNDECIDED)
    assert verdict.exit_code is ExitCode.INCONCLUSIVE
    assert cell.n_needed == stats.seeds_to_pass(94, 100, 0.90, 0.05)
    assert verdict.reason == (
        "INCONCLUSIVE: single · 1024 · back recalled 94/100; PASS needs 96, at most 80 blocks, at bar 0.90; "
        f"about {cell.n_needed} seeds would pass at this share"
    )


def test_no_number_of_seeds_helps_below_the_bar(demo: Policy, make_judged_run: MakeRun) -> None:
    """At 88 of 100 more seeds would not pass, so none is promised."""
    verdict = judged(make_judged_run(demo, answers={("single", "back"): {WRONG: range(12)}}), demo)

    assert cell_of(verdict, "single", "back").n_needed is None
    assert "seeds would pass" not in verdict.reason


@pytest.mark.parametrize(
    ("word", "kind", "code"),
    [
        ("hold", "release", ExitCode.INCONCLUSIVE),
        ("block", "release", ExitCode.BLOCK),
        ("warn", "smoke", ExitCode.PASS),
    ],
)
def test_on_inconclusive(demo: Policy, make_judged_run: MakeRun, word: str, kind: str, code: ExitCode) -> None:
    """The policy says what INCONCLUSIVE does to the pipeline; the verdict itself stays what it is."""
    policy = changed(demo, on_inconclusive=word, kind=kind)
    verdict = judged(make_judged_run(policy, answers={("single", "back"): {WRONG: range(6)}}), policy)

    assert (verdict.status, verdict.exit_code) == (Status.INCONCLUSIVE, code)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.PASS, 0),
        (Status.BLOCK, 1),
        (Status.INCONCLUSIVE, 3),
        (Status.ERROR, 4),
        (Status.TAMPERED, 5),
    ],
)
def test_exit_codes(demo: Policy, make_judged_run: MakeRun, status: Status, code: int) -> None:
    """The mapping from verdict to exit code, as the table in the README has it."""
    verdict = judged(make_judged_run(demo), demo).model_copy(update={"status": status})

    assert verdict.exit_code == code


def test_order_of_verdicts() -> None:
    """TAMPERED > ERROR > BLOCK > INCONCLUSIVE > PASS, and nothing evaluated is never PASS."""
    order = [Status.TAMPERED, Status.ERROR, Status.BLOCK, Status.INCONCLUSIVE, Status.PASS]

    for place, status in enumerate(order):
        assert worst(reversed(order[place:])) is status
    assert worst([]) is Status.ERROR


def test_error_wins_over_block(demo: Policy, make_judged_run: MakeRun) -> None:
    """A run with a blocking cell and a broken one is ERROR: nothing is said of its recall."""
    answers = {("front",): {WRONG: range(50)}, ("back",): {Outcome.ERROR: range(50)}}
    verdict = judged(make_judged_run(demo, profile="state-int8", answers=answers), demo)

    assert (verdict.status, verdict.reason_code) == (Status.ERROR, Reason.TOO_MANY_ERRORS)
    assert {cell.status for cell in verdict.cells} == {Status.ERROR}


def test_block_wins_over_inconclusive(demo: Policy, make_judged_run: MakeRun) -> None:
    """One blocking cell decides, whatever is still open."""
    answers = {("front",): {WRONG: range(10)}, ("single", "back"): {WRONG: range(50)}}

    assert judged(make_judged_run(demo, profile="state-int8", answers=answers), demo).status is Status.BLOCK


@pytest.mark.parametrize("n", [3, 5])
def test_a_few_perfect_trials_are_not_enough(demo: Policy, make_judged_run: MakeRun, n: int) -> None:
    """Three or five of as many, the sure pass of a t interval, is INCONCLUSIVE and says that no count would do."""
    policy = changed(demo, looks=[n])
    verdict = judged(make_judged_run(policy), policy)

    assert verdict.status is Status.INCONCLUSIVE
    assert "pass-unattainable" in {warning.code for warning in verdict.warnings}
    assert f"{n} seeds cannot show bar 0.90" in verdict.reason
    assert verdict.cells[0].n_needed == 29


def test_a_share_at_the_bar_does_not_pass(demo: Policy, make_judged_run: MakeRun) -> None:
    """27 of 30 is .90 exactly, and shows no recall of .90: it takes 30 of 30."""
    policy = changed(demo, looks=[30])
    verdict = judged(make_judged_run(policy, answers={("single", "back"): {WRONG: range(3)}}), policy)

    cell = cell_of(verdict, "single", "back")
    assert (cell.k, cell.n, cell.pass_min, cell.status) == (27, 30, 30, Status.INCONCLUSIVE)


def test_a_run_between_looks_is_judged_at_the_look_below(demo: Policy, make_judged_run: MakeRun) -> None:
    """130 seeds are judged at the first 100 in seed order; what the other 30 say is shown as not counted."""
    run = make_judged_run(demo, seeds=130, answers={("single", "front"): {WRONG: range(100, 130)}})
    verdict = judged(run, demo)

    assert (verdict.n, verdict.status) == (100, Status.PASS)
    assert cell_of(verdict, "single", "front").k == 100
    assert "seeds-not-counted" in {warning.code for warning in verdict.warnings}


def test_fewer_seeds_than_any_look_is_an_error(demo: Policy, make_judged_run: MakeRun) -> None:
    """A bar that was set for 100 seeds is not used with 50."""
    verdict = judged(make_judged_run(demo, seeds=50), demo)

    assert (verdict.status, verdict.reason_code) == (Status.ERROR, Reason.TOO_FEW_SEEDS)
    assert verdict.n is None
    assert "has 50 seeds, policy demo@1.0.0 judges from 100; run with --seeds 100" in verdict.reason


def test_another_suite_is_refused(demo: Policy, make_judged_run: MakeRun) -> None:
    """A policy judges the suite that it names, and that version of it: exit 2."""
    manifest, trials = make_judged_run(demo)
    newer = manifest.model_copy(update={"suite": manifest.suite.model_copy(update={"version": "1.1.0"})})

    for other, policy in ((manifest, load_policy("serving-default")), (newer, demo)):
        with pytest.raises(MismatchError, match="judges") as refused:
            judged((other, trials), policy)
        assert refused.value.exit_code is ExitCode.REFUSED


def test_other_outcomes_count_as_failures(demo: Policy, make_judged_run: MakeRun) -> None:
    """Truncated, empty and refused answers are failures of the model, not missing data."""
    outcomes = {Outcome.TRUNCATED: range(20), Outcome.EMPTY: range(20, 40), Outcome.REFUSED: range(40, 60)}
    verdict = judged(make_judged_run(demo, profile="state-int8", answers={("back",): outcomes}), demo)

    cell = cell_of(verdict, "single", "back")
    assert verdict.status is Status.BLOCK
    assert (cell.k, cell.errors) == (40, 0)
    assert cell.outcomes == {"correct": 40, "truncated": 20, "empty": 20, "refused": 20}
    assert {"truncated-answers", "empty-answers"} <= {warning.code for warning in verdict.warnings}


def test_errors_are_worst_case_both_ways(demo: Policy, make_judged_run: MakeRun) -> None:
    """One error in 100 is a failure in the PASS test and a success in the BLOCK test."""
    error = {Outcome.ERROR: [99]}
    open_below = judged(make_judged_run(demo, answers={("single", "back"): {WRONG: range(4), **error}}), demo)
    open_above = judged(
        make_judged_run(demo, profile="state-int8", answers={("single", "back"): {WRONG: range(19), **error}}), demo
    )

    cell = cell_of(open_below, "single", "back")
    assert (cell.k, cell.errors, cell.status) == (95, 1, Status.INCONCLUSIVE)
    assert cell.reason.startswith("recalled 95/100 (1 error); ")
    cell = cell_of(open_above, "single", "back")
    assert (cell.k, cell.errors, cell.block_max, cell.status) == (80, 1, 80, Status.INCONCLUSIVE)


def test_the_verdict_survives_json(demo: Policy, make_judged_run: MakeRun) -> None:
    """The stored verdict reads back as the same object, with the policy as it was applied."""
    verdict = judged(make_judged_run(demo, answers={("back",): {WRONG: range(9)}}), demo)

    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict
    assert verdict.policy.digest == demo.digest
    assert Policy.model_validate(verdict.policy_body) == demo


def test_the_judge_is_deterministic(demo: Policy, make_judged_run: MakeRun) -> None:
    """The order in which trials lie in the file changes nothing."""
    manifest, trials = make_judged_run(demo, answers={("back",): {WRONG: range(9)}})

    assert judged((manifest, trials[::-1]), demo) == judged((manifest, trials), demo)


@settings(deadline=None, max_examples=30)
@given(misses=st.fixed_dictionaries({band: st.integers(0, 100) for band in ("front", "middle", "back")}))
def test_verdict_follows_its_cells(make_judged_run: MakeRun, misses: Mapping[str, int]) -> None:
    """PASS iff every cell reaches 96 of 100, BLOCK iff one is at 80 or below; no average has a say."""
    policy = load_policy("demo")
    answers = {(band,): {WRONG: range(count)} for band, count in misses.items()}

    verdict = judged(make_judged_run(policy, profile="state-int8", answers=answers), policy)

    assert (verdict.status is Status.PASS) == all(100 - count >= 96 for count in misses.values())
    assert (verdict.status is Status.BLOCK) == any(100 - count <= 80 for count in misses.values())
    assert all(cell.k == 100 - misses[cell.cell.band] for cell in verdict.cells)
