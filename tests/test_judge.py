"""The judge on one run: bars per cell, the order of verdicts, guards, smoke policies and the floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalgate import stats
from evalgate.errors import ExitCode, MismatchError, UnsupportedError
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.profile import load_profile
from evalgate.gates.rules import judge
from evalgate.gates.verdict import CellVerdict, Reason, Status, Verdict, worst
from evalgate.records import Manifest, Outcome, Trial

MakeRun = Callable[..., tuple[Manifest, list[Trial]]]
WRONG = Outcome.WRONG


@pytest.fixture
def demo() -> Policy:
    """Six primary cells at bar .90 and 100 seeds."""
    return load_policy("demo")


def changed(policy: Policy, **fields: Any) -> Policy:
    """The policy with other fields, validated as a document would be."""
    return Policy.model_validate({**policy.model_dump(mode="json", by_alias=True), **fields})


def judged(run: tuple[Manifest, list[Trial]], policy: Policy) -> Verdict:
    """Judge ``run`` without a baseline, against the shipped profile that its manifest names."""
    return judge(*run, policy, profile=load_profile(run[0].profile.name))


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


@pytest.mark.parametrize("n", [3, 5])
def test_a_few_perfect_trials_are_not_enough(demo: Policy, make_judged_run: MakeRun, n: int) -> None:
    """Three or five of as many, the sure pass of a t interval, is INCONCLUSIVE and says that no count would do."""
    policy = changed(demo, looks=[n])
    verdict = judged(make_judged_run(policy), policy)

    assert verdict.status is Status.INCONCLUSIVE
    assert "pass-unattainable" in {warning.code for warning in verdict.warnings}
    assert f"{n} seeds cannot show bar 0.90" in verdict.reason
    assert verdict.cells[0].n_needed == 29


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


def test_several_looks_are_refused(demo: Policy, make_judged_run: MakeRun) -> None:
    """Boundaries of a fixed n are wrong under looks, so such a policy is refused for now: exit 2."""
    policy = changed(demo, looks=[100, 200])

    with pytest.raises(UnsupportedError, match=r"looks \[100, 200\]: sequential looks come later") as refused:
        judged(make_judged_run(policy, seeds=200), policy)

    assert refused.value.exit_code is ExitCode.REFUSED


def test_another_suite_is_refused(demo: Policy, make_judged_run: MakeRun) -> None:
    """A policy judges the suite that it names, and that version of it: exit 2."""
    manifest, trials = make_judged_run(demo)
    newer = manifest.model_copy(update={"suite": manifest.suite.model_copy(update={"version": "1.1.0"})})

    for other, policy in ((manifest, load_policy("serving-default")), (newer, demo)):
        with pytest.raises(MismatchError, match="judges") as refused:
            judged((other, trials), policy)
        assert refused.value.exit_code is ExitCode.REFUSED


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
