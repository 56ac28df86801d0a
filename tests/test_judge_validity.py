"""Runs that must not be judged: missing, doubled, unknown, broken or mislabelled. Each has a reason of its own."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping

import pytest
from fixtures_judged import MakeRun, changed

from evalgate.errors import ExitCode
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.profile import Profile, load_profile
from evalgate.gates.rules import judge
from evalgate.gates.verdict import Reason, Status, Verdict
from evalgate.records import Cell, Manifest, Outcome, Trial

Damage = Callable[[random.Random, list[Trial]], list[Trial]]


def judged(manifest: Manifest, trials: list[Trial], policy: Policy) -> Verdict:
    """Judge a run without a baseline, against the shipped profile that its manifest names."""
    return judge(manifest, trials, policy, profile=load_profile(manifest.profile.name))


def with_effective(manifest: Manifest, section: str, settings: object) -> Manifest:
    """The manifest whose engine reports other ``settings`` in ``section``; None: does not report it."""
    effective = {**manifest.engine.effective_profile, section: settings}
    if settings is None:
        del effective[section]
    return manifest.model_copy(update={"engine": manifest.engine.model_copy(update={"effective_profile": effective})})


def assert_error(verdict: Verdict, reason: Reason, *words: str) -> None:
    """The verdict is ERROR, exit 4, for ``reason``, says ``words``, and shows no recall."""
    assert (verdict.status, verdict.reason_code, verdict.exit_code) == (Status.ERROR, reason, ExitCode.ERROR)
    for word in words:
        assert word in verdict.reason
    for cell in verdict.cells:
        assert cell.status is Status.ERROR
        assert (cell.interval, cell.lower_bound, cell.pass_min, cell.block_max) == (None, None, None, None)


def test_empty_run(demo: Policy, make_judged_run: MakeRun) -> None:
    """No trials at all is an error, never a pass of nothing."""
    manifest, _ = make_judged_run(demo)

    verdict = judged(manifest, [], demo)

    assert_error(verdict, Reason.EMPTY_RUN, "holds no trials")
    assert [cell.n for cell in verdict.cells] == [100] * 6
    assert [cell.missing for cell in verdict.cells] == [100] * 6


@pytest.mark.parametrize("status", ["running", "partial", "failed"])
def test_run_that_did_not_finish(demo: Policy, make_judged_run: MakeRun, status: str) -> None:
    """A run that is not complete is not judged on what it has so far."""
    manifest, trials = make_judged_run(demo)

    verdict = judged(manifest.model_copy(update={"status": status}), trials, demo)

    assert_error(verdict, Reason.RUN_INCOMPLETE, f"status is {status}", "resume")


def test_run_that_planned_nothing(demo: Policy, make_judged_run: MakeRun) -> None:
    """A plan without cells does not make a run that has none of the policy's cells valid."""
    manifest, _ = make_judged_run(demo)

    verdict = judged(manifest.model_copy(update={"cells": []}), [], demo)

    assert verdict.status is Status.ERROR
    assert {check.name for check in verdict.validity if check.status == "failed"} == {"trials", "cells"}


def test_missing_length(make_judged_run: MakeRun) -> None:
    """A run whose trials lack one planned length is an error that names the length."""
    policy = load_policy("serving-default@1.0.0")
    manifest, trials = make_judged_run(policy)

    verdict = judged(manifest, [trial for trial in trials if trial.length != 4096], policy)

    assert_error(verdict, Reason.MISSING_CELLS, "9 of 36 cells are missing", "no trial of length 4096")
    assert {cell.cell.length for cell in verdict.cells if "'cells'" in cell.reason} == {4096}


def test_missing_cell_that_the_policy_does_not_judge(demo: Policy, make_judged_run: MakeRun) -> None:
    """A cell that the plan names must have trials even where no bar speaks of it."""
    manifest, trials = make_judged_run(demo)
    planned = [*manifest.cells, ("single", 2048, "front", "default")]

    verdict = judged(manifest.model_copy(update={"cells": planned}), trials, demo)

    assert_error(verdict, Reason.MISSING_CELLS, "no trial of length 2048")


def test_policy_cell_that_the_run_never_planned(demo: Policy, make_judged_run: MakeRun) -> None:
    """A cell that was left out of the run on purpose is as missing as one that was lost."""
    manifest, trials = make_judged_run(demo)
    kept = [cell for cell in manifest.cells if cell[0] == "single"]

    verdict = judged(
        manifest.model_copy(update={"cells": kept}), [trial for trial in trials if trial.task == "single"], demo
    )

    assert_error(verdict, Reason.MISSING_CELLS, "3 of 6 cells are missing", "multikey@8 · 1024 · front", "not plan")


def test_renamed_task(demo: Policy, make_judged_run: MakeRun) -> None:
    """A task under another name is both unknown and missing; the new name does not slip through as not judged."""
    manifest, trials = make_judged_run(demo)
    renamed = [dataclasses.replace(trial, task=trial.task.replace("single", "singel")) for trial in trials]

    verdict = judged(manifest, renamed, demo)

    assert_error(verdict, Reason.UNPLANNED_TRIALS, "singel · 1024 · front", "1 more checks failed")
    failed = {check.name for check in verdict.validity if check.status == "failed"}
    assert failed == {"planned", "cells"}


@pytest.mark.parametrize("seed", [-1, 100])
def test_seed_outside_the_plan(demo: Policy, make_judged_run: MakeRun, seed: int) -> None:
    """A trial of a haystack that the plan does not have is an error."""
    manifest, trials = make_judged_run(demo)
    extra = dataclasses.replace(trials[0], seed=seed, trial_id="extra")

    assert_error(judged(manifest, [*trials, extra], demo), Reason.UNPLANNED_TRIALS, f"seeds {seed} of 100")


def test_trial_id_twice(demo: Policy, make_judged_run: MakeRun) -> None:
    """One trial held twice would count twice."""
    manifest, trials = make_judged_run(demo)

    verdict = judged(manifest, [*trials, trials[0]], demo)

    assert_error(verdict, Reason.DUPLICATE_TRIALS, f"held twice ({trials[0].trial_id})")


def test_two_trials_for_one_seed(demo: Policy, make_judged_run: MakeRun) -> None:
    """A second attempt under another id does not replace the first."""
    manifest, trials = make_judged_run(demo, answers={("single", "front"): {Outcome.WRONG: [0]}})
    retry = dataclasses.replace(trials[0], trial_id="retry", attempt=2, outcome=Outcome.CORRECT)

    assert_error(judged(manifest, [*trials, retry], demo), Reason.DUPLICATE_TRIALS, "retry")


def test_every_trial_errored(demo: Policy, make_judged_run: MakeRun) -> None:
    """A wrong key or a dead server is an error of the tool: exit 4, and no recall is shown."""
    manifest, trials = make_judged_run(demo, answers={(): {Outcome.ERROR: range(100)}})

    verdict = judged(manifest, trials, demo)

    assert_error(verdict, Reason.TOO_MANY_ERRORS, "in 6 of 6 cells", "single · 1024 · front: 100 of 100")
    assert "recalled" not in verdict.reason


@pytest.mark.parametrize(("errors", "valid"), [(1, True), (2, False)])
def test_error_share_of_one_cell(demo: Policy, make_judged_run: MakeRun, errors: int, valid: bool) -> None:
    """1% of a cell is borne and 2% is not, decided on integers and in any one cell, however clean the others are."""
    manifest, trials = make_judged_run(demo, answers={("single", "middle"): {Outcome.ERROR: range(errors)}})

    verdict = judged(manifest, trials, demo)

    assert (verdict.reason_code is not Reason.TOO_MANY_ERRORS) == valid
    if not valid:
        assert_error(verdict, Reason.TOO_MANY_ERRORS, "single · 1024 · middle: 2 of 100")
        assert [cell.cell.band for cell in verdict.cells if "'errors'" in cell.reason] == ["middle"]


def test_timeouts_in_one_band(demo: Policy, make_judged_run: MakeRun) -> None:
    """5% of timeouts in the middle neither lower its recall nor leave its denominator: the run is invalid."""
    manifest, trials = make_judged_run(demo, answers={("middle",): {Outcome.ERROR: range(0, 100, 20)}})

    assert_error(judged(manifest, trials, demo), Reason.TOO_MANY_ERRORS, "5 of 100")


def test_missing_trials_count_as_errors(demo: Policy, make_judged_run: MakeRun) -> None:
    """Dropped trials do not leave the denominator: 100 planned and 60 there is an error."""
    manifest, trials = make_judged_run(demo)

    verdict = judged(manifest, [trial for trial in trials if trial.seed < 60 or trial.band != "back"], demo)

    assert_error(verdict, Reason.TOO_MANY_ERRORS, "40 of 100 (40 missing)")


def test_one_missing_trial_is_worst_case_both_ways(demo: Policy, make_judged_run: MakeRun) -> None:
    """A missing trial within the limit is no success for PASS and no failure for BLOCK."""
    manifest, trials = make_judged_run(demo, answers={("single", "back"): {Outcome.WRONG: range(4)}})
    gone = next(trial for trial in trials if trial.seed == 50 and (trial.task, trial.band) == ("single", "back"))

    verdict = judged(manifest, [trial for trial in trials if trial is not gone], demo)

    cell = next(cell for cell in verdict.cells if cell.cell == gone.cell)
    assert (cell.n, cell.k, cell.missing, cell.status) == (100, 95, 1, Status.INCONCLUSIVE)
    assert "recalled 95/100 (1 missing)" in verdict.reason


def test_errors_after_the_look_do_not_count(demo: Policy, make_judged_run: MakeRun) -> None:
    """Seeds beyond the look are neither recall nor errors."""
    manifest, trials = make_judged_run(demo, seeds=120, answers={(): {Outcome.ERROR: range(100, 120)}})

    assert judged(manifest, trials, demo).status is Status.PASS


@pytest.mark.parametrize(
    ("section", "settings", "fault"),
    [
        ("state", {"dtype": "fp32"}, "state.dtype: asked 'int8', ran 'fp32'"),
        ("state", {"codec_every": None}, "state.codec_every: asked 64, ran None"),
        ("kv", {"keep": 0.5}, "kv.keep: asked 1.0, ran 0.5"),
        ("cache", {"prefix": False}, "cache.prefix: asked True, ran False"),
        ("kv", {"sparsity": 2}, "kv.sparsity: reported, but no profile has it"),
    ],
)
def test_setting_that_was_not_live(
    demo: Policy, make_judged_run: MakeRun, section: str, settings: Mapping[str, object], fault: str
) -> None:
    """A profile that asks int8 while the engine ran fp32 says nothing about int8: ERROR."""
    manifest, trials = make_judged_run(demo, profile="state-int8")
    reported = manifest.engine.effective_profile[section]
    assert isinstance(reported, dict)

    verdict = judged(with_effective(manifest, section, {**reported, **settings}), trials, demo)

    assert_error(verdict, Reason.PROFILE_NOT_EFFECTIVE, fault)


@pytest.mark.parametrize("section", ["state", "snapshot", "kv"])
def test_section_that_the_engine_does_not_report(demo: Policy, make_judged_run: MakeRun, section: str) -> None:
    """What is not read back was not shown to run."""
    manifest, trials = make_judged_run(demo)

    verdict = judged(with_effective(manifest, section, None), trials, demo)

    assert_error(verdict, Reason.PROFILE_NOT_EFFECTIVE, f"{section}: not reported by the engine")


def test_field_that_the_engine_does_not_report(demo: Policy, make_judged_run: MakeRun) -> None:
    """A section that lacks one field is not taken for the whole."""
    manifest, trials = make_judged_run(demo)

    verdict = judged(with_effective(manifest, "kv", {"dtype": "auto", "window": None}), trials, demo)

    assert_error(verdict, Reason.PROFILE_NOT_EFFECTIVE, "kv.keep: not reported by the engine")


def test_backend_without_a_cache(demo: Policy, make_judged_run: MakeRun) -> None:
    """A backend that has no prefix cache may leave that section out: it changes speed, not recall."""
    manifest, trials = make_judged_run(demo)

    assert judged(with_effective(manifest, "cache", None), trials, demo).status is Status.PASS


@pytest.mark.parametrize(("reported", "valid"), [("auto", True), ("fp32", True), ("int8", False)])
def test_auto_is_the_compute_dtype(demo: Policy, make_judged_run: MakeRun, reported: str, valid: bool) -> None:
    """``auto`` may be read back as itself or as the dtype that it stands for, and as nothing else."""
    manifest, trials = make_judged_run(demo)
    kv = {"dtype": reported, "keep": 1.0, "window": None}

    verdict = judged(with_effective(manifest, "kv", kv), trials, demo)

    assert (verdict.status is Status.PASS) == valid


def test_profile_that_is_not_at_hand(demo: Policy, make_judged_run: MakeRun) -> None:
    """Without the document there is nothing to hold the engine to, so a policy that requires it finds ERROR."""
    manifest, trials = make_judged_run(demo)

    assert_error(judge(manifest, trials, demo), Reason.PROFILE_NOT_EFFECTIVE, "full@1.0.0 is not at hand")


def test_profile_of_the_same_name_that_says_something_else(demo: Policy, make_judged_run: MakeRun) -> None:
    """The document is known by its digest, not by its name."""
    manifest, trials = make_judged_run(demo)
    other = Profile.model_validate({**load_profile("full").model_dump(mode="json"), "reason": "another"})

    verdict = judge(manifest, trials, demo, profile=other)

    assert_error(verdict, Reason.PROFILE_NOT_EFFECTIVE, "the run used profile full@1.0.0")


def test_policy_that_does_not_ask_for_effective_profiles(demo: Policy, make_judged_run: MakeRun) -> None:
    """``require_effective_profile: false`` is shown as not applicable, and the run is judged."""
    policy = changed(demo, validity={"require_effective_profile": False})
    manifest, trials = make_judged_run(policy)

    verdict = judge(with_effective(manifest, "kv", None), trials, policy)

    assert verdict.status is Status.PASS
    assert next(check for check in verdict.validity if check.name == "profile").status == "not-applicable"


def test_ungated_cells_are_told(demo: Policy, make_judged_run: MakeRun) -> None:
    """What the run asked and the policy does not judge is named, so that it is not taken for passed."""
    manifest, trials = make_judged_run(demo)
    extra = Cell("overwrite@3", 1024, "front")
    planned = [*manifest.cells, (extra.task, extra.length, extra.band, extra.arm)]
    asked = [dataclasses.replace(t, task=extra.task, trial_id=f"o{t.seed}") for t in trials if t.cell == trials[0].cell]

    verdict = judged(manifest.model_copy(update={"cells": planned}), [*trials, *asked], demo)

    notice = next(warning for warning in verdict.warnings if warning.code == "ungated-cells")
    assert "overwrite@3 · 1024 · front" in notice.detail
    assert verdict.status is Status.PASS


def test_prompts_of_another_length_than_planned(demo: Policy, make_judged_run: MakeRun) -> None:
    """An answer to a cut prompt is an error that ended well; one of them voids the cell, by its own reason."""
    manifest, trials = make_judged_run(demo, answers={("middle",): {Outcome.ERROR: [7]}})
    cut = [dataclasses.replace(t, finish_reason="stop") if t.outcome is Outcome.ERROR else t for t in trials]

    assert_error(judged(manifest, cut, demo), Reason.TOKENS_OFF_PLAN, "1 of 100", "window")
    assert judged(manifest, trials, demo).status is Status.PASS


@pytest.mark.parametrize(("cold", "valid"), [(0, True), (1, True), (2, False), (100, False)])
def test_a_warm_arm_that_saw_no_hit(demo: Policy, make_judged_run: MakeRun, cold: int, *, valid: bool) -> None:
    """Up to 1% may miss; above that the arm tested nothing."""
    cells = [cell.model_dump(mode="json") | {"arm": "warm"} for cell in demo.cells]
    warm = changed(demo, cells=cells, validity={"floor": None})
    manifest, trials = make_judged_run(warm)
    drawn = [dataclasses.replace(t, cached_tokens=0 if t.seed < cold else 512) for t in trials]
    found = judged(manifest, drawn, warm)

    if valid:
        assert found.status is Status.PASS
    else:
        assert_error(found, Reason.WARM_WITHOUT_HITS, f"{cold} of 100", "prefix caching")


def test_a_policy_that_judges_nothing(demo: Policy, make_judged_run: MakeRun) -> None:
    """Reading one is refused; one made otherwise passes nothing."""
    manifest, trials = make_judged_run(demo)

    assert_error(judged(manifest, trials, demo.model_copy(update={"cells": []})), Reason.NO_RULES, "no primary cell")


def _remove(draw: random.Random, trials: list[Trial]) -> list[Trial]:
    gone = {t.trial_id for t in draw.sample(trials, draw.randint(1, 40))}
    return [t for t in trials if t.trial_id not in gone]


def _repeat(draw: random.Random, trials: list[Trial]) -> list[Trial]:
    return [*trials, *draw.sample(trials, draw.randint(1, 5))]


def _spoil(draw: random.Random, trials: list[Trial]) -> list[Trial]:
    outcomes = (Outcome.ERROR, Outcome.WRONG, Outcome.EMPTY, Outcome.TRUNCATED, Outcome.REFUSED)
    return [dataclasses.replace(t, outcome=draw.choice(outcomes)) if draw.random() < 0.1 else t for t in trials]


def _rename(draw: random.Random, trials: list[Trial]) -> list[Trial]:
    old, new = draw.choice(trials).band, draw.choice(("Middle", "", "nan", "all"))
    return [dataclasses.replace(t, band=new) if t.band == old else t for t in trials]


def _shift(draw: random.Random, trials: list[Trial]) -> list[Trial]:
    return [dataclasses.replace(t, seed=t.seed + draw.choice((-1, 100))) if draw.random() < 0.05 else t for t in trials]


@pytest.mark.parametrize("damage", [_remove, _repeat, _spoil, _rename, _shift], ids=lambda f: f.__name__)
def test_no_damage_makes_a_verdict_better(damage: Damage, demo: Policy, make_judged_run: MakeRun) -> None:
    """Whatever is lost, doubled, renamed, moved or spoilt: what did not pass whole does not pass damaged."""
    for seed in range(60):
        draw = random.Random(seed)
        wrong = {("middle", "single"): {Outcome.WRONG: draw.sample(range(100), draw.choice((0, 3, 5, 9, 40)))}}
        manifest, trials = make_judged_run(demo, answers=wrong)
        before, after = judged(manifest, trials, demo), judged(manifest, damage(draw, trials), demo)
        if before.status is not Status.PASS:
            assert after.status is not Status.PASS
        if damage in (_repeat, _rename, _shift):
            assert after.status is Status.ERROR
        assert all(cell.k + cell.errors + cell.missing <= cell.n for cell in after.cells)
