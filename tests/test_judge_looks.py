"""The judge under looks: each test of a cell is frozen where it crosses, one budget is spent, and ends are clean."""

from __future__ import annotations

from fractions import Fraction

import pytest
from fixtures_judged import MakeRun, changed, compared, judged

from evalgate.gates.policy import Policy
from evalgate.gates.verdict import CellVerdict, Reason, Status, Verdict
from evalgate.records import Outcome
from evalgate.stats import block_bounds, block_max, mcnemar_min

LOOKS = [100, 200, 400, 800]
WRONG = Outcome.WRONG


@pytest.fixture
def policy(demo: Policy) -> Policy:
    """The demo's six cells at bar .90 with looks 100 to 800 and break margin .03."""
    return changed(demo, looks=LOOKS, baseline={"use": "optional", "break_margin": 0.03})


def cell_of(verdict: Verdict, task: str, band: str) -> CellVerdict:
    """The verdict's cell of this task and band."""
    return next(cell for cell in verdict.cells if (cell.cell.task, cell.cell.band) == (task, band))


def test_a_pass_is_frozen_where_it_crosses(policy: Policy, make_judged_run: MakeRun) -> None:
    """98 of the first 100 pass for good; that all later answers are wrong comes after the decision."""
    answers = {("single", "middle"): {WRONG: [3, 50, *range(100, 800)]}}
    verdict = judged(make_judged_run(policy, seeds=800, answers=answers), policy)

    cell = cell_of(verdict, "single", "middle")
    assert (cell.status, cell.k, cell.n, cell.pass_min) == (Status.PASS, 98, 100, 98)
    assert (verdict.status, verdict.n) == (Status.PASS, 100)
    assert "all 6 cells pass at 100 seeds" in verdict.reason
    assert "seeds-not-counted" in {warning.code for warning in verdict.warnings}


def test_an_open_cell_goes_on_and_the_others_do_not(policy: Policy, make_judged_run: MakeRun) -> None:
    """97 of 100 is open, 190 of 200 passes; every other cell stays at its 100 of 100."""
    answers = {("multikey@8", "back"): {WRONG: range(90, 100)}, ("multikey@8", "front"): {WRONG: range(190, 200)}}
    verdict = judged(make_judged_run(policy, seeds=400, answers=answers), policy)

    late, early = cell_of(verdict, "multikey@8", "back"), cell_of(verdict, "multikey@8", "front")
    assert (late.status, late.k, late.n, late.pass_min) == (Status.PASS, 190, 200, 190)
    assert (early.status, early.k, early.n) == (Status.PASS, 100, 100)
    assert (verdict.status, verdict.n) == (Status.PASS, 200)


def test_a_block_is_frozen_too_and_ends_the_run(policy: Policy, make_judged_run: MakeRun) -> None:
    """A block at the first look stays, whatever comes later; cells that were open then were last asked at 100."""
    most = block_bounds(LOOKS, 0.9, Fraction("0.02") / 6)[0]
    assert most is not None
    answers = {
        ("single", "middle"): {WRONG: range(100 - most)},
        ("multikey@8", "front"): {WRONG: range(5)},
    }
    run = make_judged_run(policy, seeds=800, profile="state-int8", answers=answers)
    verdict = judged(run, policy)

    assert (verdict.status, verdict.reason_code, verdict.n) == (Status.BLOCK, Reason.BELOW_BAR, 100)
    assert (cell_of(verdict, "single", "middle").k, cell_of(verdict, "single", "middle").block_max) == (most, most)
    waiting = cell_of(verdict, "multikey@8", "front")
    assert (waiting.status, waiting.n, waiting.n_needed) == (Status.INCONCLUSIVE, 100, 200)

    goes_on = judged(run, changed(policy, stop_on_block=False))
    assert (goes_on.status, goes_on.n) == (Status.BLOCK, 200)
    assert cell_of(goes_on, "single", "middle").n == 100
    assert cell_of(goes_on, "multikey@8", "front").status is Status.PASS


def test_one_answer_more_does_not_block(policy: Policy, make_judged_run: MakeRun) -> None:
    """The boundary of the look decides, not that of a fixed 100 seeds, which would block here."""
    most = block_bounds(LOOKS, 0.9, Fraction("0.02") / 6)[0]
    fixed = block_max(100, 0.9, Fraction("0.02") / 6)
    assert most is not None
    assert fixed is not None
    assert most < fixed
    answers = {("single", "middle"): {WRONG: range(100 - most - 1)}}
    verdict = judged(make_judged_run(policy, profile="state-int8", answers=answers), policy)

    assert (verdict.status, cell_of(verdict, "single", "middle").k) == (Status.INCONCLUSIVE, most + 1)


@pytest.mark.parametrize(("seeds", "n"), [(100, 100), (199, 100), (200, 200), (399, 200), (1000, 800)])
def test_a_run_is_judged_at_the_look_below(policy: Policy, make_judged_run: MakeRun, seeds: int, n: int) -> None:
    """Whatever its number of seeds, an open cell counts those of the largest look not above it, in seed order."""
    answers = {("single", "back"): {WRONG: range(7, seeds, 10)}}
    verdict = judged(make_judged_run(policy, seeds=seeds, profile="state-int8", answers=answers), policy)

    cell = cell_of(verdict, "single", "back")
    assert (verdict.status, verdict.n, cell.n, cell.k) == (Status.INCONCLUSIVE, n, n, n - n // 10)


def test_fewer_seeds_than_the_first_look_is_an_error(policy: Policy, make_judged_run: MakeRun) -> None:
    """99 seeds reach no look."""
    verdict = judged(make_judged_run(policy, seeds=99), policy)

    assert (verdict.status, verdict.reason_code, verdict.n) == (Status.ERROR, Reason.TOO_FEW_SEEDS, None)
    assert "judges from 100" in verdict.reason


def test_errors_count_against_both_words_at_a_look(policy: Policy, make_judged_run: MakeRun) -> None:
    """One error among 98 of 100 leaves 97 and an open cell; at 200 it is one failure of ten."""
    answers = {("single", "middle"): {WRONG: [0, 1], Outcome.ERROR: [2]}}
    verdict = judged(make_judged_run(policy, seeds=200, answers=answers), policy)

    cell = cell_of(verdict, "single", "middle")
    assert (cell.n, cell.k, cell.errors, cell.status) == (200, 197, 1, Status.PASS)


def test_the_verdict_holds_every_boundary(policy: Policy, make_judged_run: MakeRun) -> None:
    """All integers were fixed before the first seed, and the document shows them with what each look may spend."""
    run, baseline = make_judged_run(policy, profile="state-int8"), make_judged_run(policy, run_id="base")
    verdict = compared(run, baseline, policy)

    cell = verdict.cells[0]
    blocks = block_bounds(LOOKS, 0.9, Fraction("0.02") / 6)
    assert [(look.n, look.pass_min, look.block_max) for look in cell.looks] == list(
        zip(LOOKS, (98, 190, 373, 736), blocks, strict=True)
    )
    assert cell.baseline is not None
    assert [(look.n, look.breaks_max) for look in cell.baseline.looks] == list(
        zip(LOOKS, (None, 0, 5, 15), strict=True)
    )
    assert sum(Fraction(repr(look.alpha)) for look in cell.baseline.looks) == pytest.approx(0.02 / 6)
    assert verdict.looks == LOOKS
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def test_the_break_bound_is_frozen_at_a_look_of_its_own(policy: Policy, make_judged_run: MakeRun) -> None:
    """Against a baseline nothing passes at 100; at 200 no break may be seen, and the bar stays as it stood at 100."""
    baseline = make_judged_run(policy, run_id="base", seeds=800)
    answers = {("single", "middle"): {WRONG: [0, 1, *range(200, 800)]}, ("single", "back"): {WRONG: range(200, 800)}}
    verdict = compared(make_judged_run(policy, seeds=800, profile="state-int8", answers=answers), baseline, policy)

    clean = cell_of(verdict, "single", "back")
    assert clean.baseline is not None
    assert (clean.status, clean.n, clean.baseline.n, clean.baseline.breaks) == (Status.PASS, 100, 200, 0)
    broken = cell_of(verdict, "single", "middle")
    assert broken.baseline is not None
    assert (broken.absolute, broken.n, broken.k) == (Status.PASS, 100, 98)
    assert (broken.status, broken.baseline.n, broken.baseline.status) == (Status.BLOCK, 400, Status.BLOCK)
    assert {flip.seed for flip in verdict.flips if flip.cell.band == "back"} == set()


def test_a_break_bound_that_passed_stays_passed(policy: Policy, make_judged_run: MakeRun) -> None:
    """No break in 200 passes for good: eight breaks that come while the bar is still open are after the decision."""
    both = {("single", "back"): {WRONG: range(12)}}
    baseline = make_judged_run(policy, run_id="base", seeds=400, answers=both)
    answers = {("single", "back"): {WRONG: [*range(12), *range(300, 308)]}}
    verdict = compared(make_judged_run(policy, seeds=400, profile="state-int8", answers=answers), baseline, policy)

    cell = cell_of(verdict, "single", "back")
    assert cell.baseline is not None
    assert (cell.status, cell.n, cell.k) == (Status.PASS, 400, 380)
    assert (cell.baseline.n, cell.baseline.breaks, cell.baseline.breaks_max) == (200, 0, 0)
    assert "broke 0 of 200, at most 0 may break" in cell.reason


def test_mcnemar_spends_only_its_look(policy: Policy, make_judged_run: MakeRun) -> None:
    """At 100 seeds a paired test has an eighth of its budget: what all of it would block stays open."""
    whole = mcnemar_min(9, Fraction("0.02") / 6)
    part = mcnemar_min(9, Fraction("0.02") / 6 / 8)
    assert (whole, part) == (9, None)
    baseline = make_judged_run(policy, run_id="base")
    answers = {("single", "middle"): {WRONG: range(9)}}
    verdict = compared(make_judged_run(policy, profile="state-int8", answers=answers), baseline, policy)

    cell = cell_of(verdict, "single", "middle")
    assert cell.baseline is not None
    assert (cell.baseline.b, cell.baseline.b_min, cell.status) == (9, None, Status.INCONCLUSIVE)
    assert cell.baseline.alpha == pytest.approx(0.02 / 6 / 8)


def test_guards_have_one_look(policy: Policy, make_judged_run: MakeRun) -> None:
    """A guard counts 60 seeds whatever the looks; what it recalls later neither blocks nor keeps the run open."""
    rules = [rule.model_dump(mode="json") for rule in policy.cells]
    guards = [{**rules[0], "task": ["multikey@8"], "tier": "guard"}]
    with_guards = changed(policy, cells=[{**rules[0], "task": ["single"]}, *guards])
    later = {("multikey@8", "middle"): {WRONG: range(60, 800)}}
    early = {("multikey@8", "middle"): {WRONG: range(20)}}

    fine = judged(make_judged_run(with_guards, seeds=800, answers=later), with_guards)
    guard = cell_of(fine, "multikey@8", "middle")
    assert (fine.status, fine.n, guard.n, guard.k, guard.status) == (Status.PASS, 100, 60, 60, Status.INCONCLUSIVE)
    assert [look.n for look in guard.looks] == [60]
    lost = judged(make_judged_run(with_guards, seeds=800, profile="state-int8", answers=early), with_guards)
    assert (lost.status, cell_of(lost, "multikey@8", "middle").k) == (Status.BLOCK, 40)


def test_smoke_policies_never_pass_under_looks(policy: Policy, make_judged_run: MakeRun) -> None:
    """They are open to the end unless they block."""
    smoke = changed(policy, kind="smoke")
    verdict = judged(make_judged_run(smoke, seeds=200), smoke)

    assert (verdict.status, verdict.n, verdict.cells[0].pass_min) == (Status.INCONCLUSIVE, 200, None)


@pytest.mark.parametrize(("wrong", "n", "status"), [(10, 200, Status.PASS), (25, 100, Status.ERROR)])
def test_the_floor_counts_the_seeds_of_its_cells(
    policy: Policy, make_judged_run: MakeRun, wrong: int, n: int, status: Status
) -> None:
    """A band of `single` that had to go on counts all that it was asked; one that blocked at 100 is a broken set-up."""
    answers = {("single", "front"): {WRONG: range(wrong)}}
    verdict = judged(make_judged_run(policy, seeds=400, answers=answers), policy)

    assert verdict.floor is not None
    assert {band.band: (band.n, band.k) for band in verdict.floor.bands} == {
        "front": (n, n - wrong),
        "middle": (100, 100),
        "back": (100, 100),
    }
    assert verdict.status is status
