"""Drawing look by look: what is asked next, and that the verdict is the one of a run that asked everything."""

from __future__ import annotations

import random

import pytest
from fixtures_judged import MakeRun, Run, changed, compared, judged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalgate.gates.policy import Policy
from evalgate.gates.schedule import begin, extend
from evalgate.gates.verdict import Reason, Status, Verdict
from evalgate.records import Cell, Manifest, Outcome, Schedule

LOOKS = [20, 40, 80]
WRONG = Outcome.WRONG
KEPT = {"run", "warnings"}
"""Fields of a verdict that say how many seeds the run has, and that some were not counted."""


@pytest.fixture
def policy(demo: Policy) -> Policy:
    """Six cells at bar .60 with small looks; one of them is a guard."""
    rule = demo.cells[0].model_dump(mode="json") | {"min": 0.6}
    cells = [
        rule | {"task": ["single"]},
        rule | {"task": ["multikey@8"], "band": ["front", "middle"]},
        rule | {"task": ["multikey@8"], "band": ["back"], "tier": "guard"},
    ]
    return changed(demo, looks=LOOKS, n_guard=15, cells=cells, baseline={"use": "optional", "break_margin": 0.3})


def draw(whole: Run, policy: Policy, baseline: Run | None = None) -> tuple[Run, Verdict]:
    """Take from a run that asked everything only what the looks ask for, as the runner does."""
    manifest, trials = whole
    cells = [Cell(*parts) for parts in manifest.cells]
    schedule: Schedule | None = begin(policy, cells, None if baseline is None else baseline[0].run_id)
    while schedule is not None:
        drawn = manifest.model_copy(update={"schedule": schedule, "seeds": max(schedule.asked)})
        asked = dict(zip(cells, schedule.asked, strict=True))
        kept = [trial for trial in trials if trial.seed < asked[trial.cell]]
        verdict = judged((drawn, kept), policy) if baseline is None else compared((drawn, kept), baseline, policy)
        schedule = extend(schedule, policy, cells, verdict)
    return (drawn, kept), verdict


def asked(manifest: Manifest) -> dict[tuple[str, str], int]:
    """(task, band) -> seeds that the schedule asks."""
    assert manifest.schedule is not None
    return {(c[0], c[2]): n for c, n in zip(manifest.cells, manifest.schedule.asked, strict=True)}


def test_only_open_cells_are_asked_on(policy: Policy, make_judged_run: MakeRun) -> None:
    """A cell that passed at the first look stays there, a guard at its seeds, an open one goes on and then ends."""
    answers = {("single", "middle"): {WRONG: range(8)}}
    whole = make_judged_run(policy, seeds=80, profile="state-int8", answers=answers)
    (manifest, trials), verdict = draw(whole, policy)

    assert asked(manifest) == {
        ("single", "front"): 20,
        ("single", "middle"): 40,
        ("single", "back"): 20,
        ("multikey@8", "front"): 20,
        ("multikey@8", "middle"): 20,
        ("multikey@8", "back"): 15,
    }
    assert (verdict.status, verdict.n, manifest.seeds) == (Status.PASS, 40, 40)
    assert len(trials) == 4 * 20 + 40 + 15
    assert sum(cell.missing for cell in verdict.cells) == 0


@pytest.mark.parametrize("paired", [False, True])
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), recall=st.lists(st.sampled_from([0.3, 0.6, 0.75, 0.9, 1.0]), min_size=6, max_size=6))
def test_the_verdict_is_that_of_the_whole_run(
    policy: Policy, make_judged_run: MakeRun, paired: bool, seed: int, recall: list[float]
) -> None:
    """Whatever the answers, skipping decided cells changes nothing that the verdict says of any cell."""
    chance = random.Random(seed)
    for stop in (True, False):
        rules = changed(policy, stop_on_block=stop)
        answers = {
            (cell.task, cell.band): {WRONG: [i for i in range(80) if chance.random() > true]}
            for cell, true in zip(rules.rules, recall, strict=True)
        }
        whole = make_judged_run(rules, seeds=80, profile="state-int8", answers=answers)
        baseline = make_judged_run(rules, run_id="base", seeds=80) if paired else None
        drawn, verdict = draw(whole, rules, baseline)

        reference = judged(whole, rules) if baseline is None else compared(whole, baseline, rules)
        said, expected = verdict.model_dump(exclude=KEPT), reference.model_dump(exclude=KEPT)
        for one in (said, expected):
            one["validity"] = [check for check in one["validity"] if check["name"] not in {"trials", "seeds"}]
        assert said == expected
        assert max(cell.n for cell in verdict.cells) <= drawn[0].seeds
        assert verdict.status is not Status.ERROR


def test_a_decided_cell_is_not_missing_and_an_open_one_is(policy: Policy, make_judged_run: MakeRun) -> None:
    """A trial that is taken out of an open cell is missing and the run ERROR; a decided cell lacks none."""
    answers = {("single", "middle"): {WRONG: range(8)}}
    whole = make_judged_run(policy, seeds=80, profile="state-int8", answers=answers)
    (manifest, trials), _ = draw(whole, policy)
    without = [t for t in trials if not (t.cell.task == "single" and t.band == "middle" and t.seed == 30)]

    verdict = judged((manifest, without), policy)
    assert (verdict.status, verdict.reason_code) == (Status.ERROR, Reason.TOO_MANY_ERRORS)
    assert "single · 1024 · middle: 1 of 40 (1 missing)" in verdict.reason


def test_a_trial_beyond_the_schedule_is_unplanned(policy: Policy, make_judged_run: MakeRun) -> None:
    """A trial that was put into a decided cell does not slip in."""
    whole = make_judged_run(policy, seeds=80, profile="state-int8", answers={("single", "middle"): {WRONG: range(8)}})
    (manifest, trials), _ = draw(whole, policy)
    extra = next(t for t in whole[1] if (t.task, t.band, t.seed) == ("single", "front", 20))

    verdict = judged((manifest, [*trials, extra]), policy)
    assert (verdict.status, verdict.reason_code) == (Status.ERROR, Reason.UNPLANNED_TRIALS)


def test_a_schedule_that_closes_an_open_cell_is_an_error(policy: Policy, make_judged_run: MakeRun) -> None:
    """What a run stopped asking must be decided by the trials that it holds, whatever its schedule says."""
    answers = {("single", "middle"): {WRONG: range(8)}, ("single", "front"): {WRONG: range(8)}}
    whole = make_judged_run(policy, seeds=80, profile="state-int8", answers=answers)
    (manifest, trials), _ = draw(whole, policy)
    assert manifest.schedule is not None
    shut = manifest.schedule.model_copy(update={"asked": [20, *manifest.schedule.asked[1:]]})
    fewer = [t for t in trials if not ((t.task, t.band) == ("single", "front") and t.seed >= 20)]

    verdict = judged((manifest.model_copy(update={"schedule": shut}), fewer), policy)
    assert (verdict.status, verdict.reason_code) == (Status.ERROR, Reason.NOT_DRAWN)
    assert "single · 1024 · front: 20 of 40 seeds" in verdict.reason
    assert "drawn for the looks of policy demo@1.0.0 with no baseline" in verdict.reason


def test_a_baseline_that_comes_later_finds_cells_closed(policy: Policy, make_judged_run: MakeRun) -> None:
    """Cells that stopped by the bar alone are not judged by a break bound that is open; a look they reach is fine."""
    stiff = changed(policy, baseline={"use": "optional", "break_margin": 0.05})
    answers = {("single", "middle"): {WRONG: range(8)}}
    whole = make_judged_run(stiff, seeds=80, profile="state-int8", answers=answers)
    (manifest, trials), alone = draw(whole, stiff)
    baseline = make_judged_run(stiff, run_id="base", seeds=80)
    assert alone.status is Status.PASS

    later = compared((manifest, trials), baseline, stiff)
    assert (later.status, later.reason_code) == (Status.ERROR, Reason.NOT_DRAWN)
    fixed = judged((manifest, trials), changed(stiff, looks=[20], version="1.0.1"))
    assert (fixed.status, fixed.n) == (Status.INCONCLUSIVE, 20), "its first 20 seeds are all there"


def test_a_block_ends_the_drawing(policy: Policy, make_judged_run: MakeRun) -> None:
    """Under ``stop_on_block`` nothing more is asked; without it the cells that are open go on."""
    answers = {("single", "middle"): {WRONG: range(20)}, ("single", "front"): {WRONG: range(8)}}
    whole = make_judged_run(policy, seeds=80, profile="state-int8", answers=answers)

    (stopped, _), verdict = draw(whole, policy)
    assert (verdict.status, stopped.seeds) == (Status.BLOCK, 20)
    (goes_on, _), later = draw(whole, changed(policy, stop_on_block=False))
    assert (later.status, asked(goes_on)["single", "front"], asked(goes_on)["single", "middle"]) == (
        Status.BLOCK,
        40,
        20,
    )


def test_a_run_that_is_not_valid_asks_no_more(policy: Policy, make_judged_run: MakeRun) -> None:
    """Errors above the limit at the first look are ERROR, and no later seed would mend them."""
    answers = {("single", "middle"): {Outcome.ERROR: range(3)}, ("single", "front"): {WRONG: range(8)}}
    (manifest, _), verdict = draw(make_judged_run(policy, seeds=80, profile="state-int8", answers=answers), policy)

    assert (verdict.status, manifest.seeds) == (Status.ERROR, 20)


def test_guards_that_need_more_than_the_first_look_have_it(policy: Policy, make_judged_run: MakeRun) -> None:
    """The first look is drawn as far as the guards need; bars are still judged at the looks."""
    rules = changed(policy, n_guard=30)
    (manifest, _), verdict = draw(make_judged_run(rules, seeds=80, profile="state-int8"), rules)

    assert set(asked(manifest).values()) == {30}
    assert (verdict.status, verdict.n) == (Status.PASS, 20)
