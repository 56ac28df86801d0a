"""Which baselines may be compared with, and what the reader is told of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from fixtures_judged import MakeRun, Run, changed, compared

from evalgate.errors import ExitCode, MismatchError
from evalgate.gates.policy import Policy
from evalgate.gates.profile import load_profile
from evalgate.gates.rules import judge
from evalgate.gates.verdict import Reason, Status, Verdict
from evalgate.records import Outcome

WRONG = Outcome.WRONG
ERROR = Outcome.ERROR
FRONT = ("single", "front")


def codes(verdict: Verdict) -> set[str]:
    """Codes of the warnings."""
    return {warning.code for warning in verdict.warnings}


def test_required_baseline_that_is_missing(demo: Policy, make_judged_run: MakeRun) -> None:
    """A policy that requires a baseline fails closed without one."""
    policy = changed(demo, baseline={"use": "required", "break_margin": 0.08})
    verdict = judge(*make_judged_run(policy), policy, profile=load_profile("full"))

    assert (verdict.status, verdict.reason_code) == (Status.ERROR, Reason.BASELINE_REQUIRED)
    assert "pass --baseline RUN" in verdict.reason


def test_baseline_that_the_policy_does_not_use(demo: Policy, make_judged_run: MakeRun) -> None:
    """A baseline under ``use: none`` is refused, never ignored: exit 2."""
    policy = changed(demo, baseline={"use": "none"})

    with pytest.raises(MismatchError, match="leave --baseline out") as refused:
        compared(make_judged_run(policy), make_judged_run(policy, run_id="base"), policy)

    assert refused.value.exit_code is ExitCode.REFUSED


def test_a_run_is_not_its_own_baseline(demo: Policy, make_judged_run: MakeRun) -> None:
    """A run compared with itself would show no break whatever it lost."""
    run = make_judged_run(demo)

    with pytest.raises(MismatchError, match="its own baseline"):
        compared(run, run, demo)


def manifest_of(run: Run, **fields: Any) -> Run:
    """The run under a manifest with other fields."""
    return run[0].model_copy(update=fields), run[1]


@pytest.mark.parametrize(
    "what", ["tokenizer", "suite digest", "suite", "seed set", "generator version", "scorer version"]
)
def test_incomparable_baseline(demo: Policy, make_judged_run: MakeRun, what: str) -> None:
    """Another tokenizer, suite, seed set, generator or scorer makes numbers that cannot be compared: ERROR."""
    base = make_judged_run(demo, run_id="base")
    manifest = base[0]
    other: dict[str, dict[str, object]] = {
        "tokenizer": {"model": manifest.model.model_copy(update={"tokenizer_sha256": "9" * 64})},
        "suite digest": {"suite": manifest.suite.model_copy(update={"digest": "9" * 64})},
        "suite": {"suite": manifest.suite.model_copy(update={"version": "9.0.0"})},
        "seed set": {"seed_set": "other"},
        "generator version": {"generator_version": "2"},
        "scorer version": {"versions": {**manifest.versions, "scorer": "2"}},
    }

    verdict = compared(make_judged_run(demo), manifest_of(base, **other[what]), demo)

    assert (verdict.status, verdict.reason_code) == (Status.ERROR, Reason.BASELINE_NOT_COMPARABLE)
    assert f"its {what} is " in verdict.reason


def test_baseline_that_lacks_a_prompt(demo: Policy, make_judged_run: MakeRun) -> None:
    """A baseline must hold every counted trial."""
    manifest, trials = make_judged_run(demo, run_id="base")

    verdict = compared(make_judged_run(demo), (manifest, [t for t in trials if t.seed != 99 or t.band != "back"]), demo)

    assert verdict.reason_code is Reason.BASELINE_NOT_COMPARABLE
    assert "single · 1024 · back: it lacks 1 of 100 trials" in verdict.reason


def test_baseline_of_fewer_seeds(demo: Policy, make_judged_run: MakeRun) -> None:
    """A baseline of 50 seeds is not stretched over 100."""
    verdict = compared(make_judged_run(demo), make_judged_run(demo, run_id="base", seeds=50), demo)

    assert verdict.reason_code is Reason.BASELINE_NOT_COMPARABLE
    assert "it lacks 50 of 100 trials" in verdict.reason


def test_baseline_of_more_seeds_is_fine(demo: Policy, make_judged_run: MakeRun) -> None:
    """A baseline may hold more than is counted."""
    verdict = compared(make_judged_run(demo), make_judged_run(demo, run_id="base", seeds=200), demo)

    assert verdict.status is Status.PASS


def test_baseline_that_saw_another_prompt(demo: Policy, make_judged_run: MakeRun) -> None:
    """A prompt that differs in one token is another question."""
    manifest, trials = make_judged_run(demo, run_id="base")
    trials[0] = dataclasses.replace(trials[0], prompt_sha256="0" * 64)

    verdict = compared(make_judged_run(demo), (manifest, trials), demo)

    assert verdict.reason_code is Reason.BASELINE_NOT_COMPARABLE
    assert "1 of 100 prompts differ" in verdict.reason


def test_baseline_that_is_itself_invalid(demo: Policy, make_judged_run: MakeRun) -> None:
    """Errors, trials twice or an unfinished baseline make the comparison invalid, whatever the candidate did."""
    run = make_judged_run(demo)
    errors = make_judged_run(demo, run_id="base", answers={FRONT: {ERROR: range(2)}})
    manifest, trials = make_judged_run(demo, run_id="base")
    broken: dict[str, Run] = {
        "2 of 100 trials are errors": errors,
        "holds trials twice": (manifest, [*trials, trials[0]]),
        "status is partial": (manifest.model_copy(update={"status": "partial"}), trials),
        "plan does not name": (manifest, [*trials, dataclasses.replace(trials[0], trial_id="x", task="other")]),
        "kv: not reported": (
            manifest.model_copy(update={"engine": manifest.engine.model_copy(update={"effective_profile": {}})}),
            trials,
        ),
    }

    for words, baseline in broken.items():
        verdict = compared(run, baseline, demo)
        assert (verdict.status, verdict.reason_code) == (Status.ERROR, Reason.BASELINE_INVALID)
        assert words in verdict.reason


def test_baseline_of_other_weights_is_told(demo: Policy, make_judged_run: MakeRun) -> None:
    """An older model may be the baseline, and the reader is told that weights changed along with the profile."""
    base = make_judged_run(demo, run_id="base")
    model = base[0].model.model_copy(update={"weights_sha256": "9" * 64})

    verdict = compared(make_judged_run(demo), manifest_of(base, model=model), demo)

    assert verdict.status is Status.PASS
    assert "baseline-other-model" in codes(verdict)


@pytest.mark.parametrize(("total", "warned"), [(4096, True), (4095, False)])
def test_a_profile_that_saves_nothing_is_told(demo: Policy, make_judged_run: MakeRun, total: int, warned: bool) -> None:
    """A compressed run that holds as many bytes as its baseline kept its recall for a reason that the reader knows."""
    run = make_judged_run(demo, profile="state-int8")
    engine = run[0].engine.model_copy(update={"bytes_per_session": {"total": total}})

    verdict = compared(manifest_of(run, engine=engine), make_judged_run(demo, run_id="base"), demo)

    assert ("no-bytes-saved" in codes(verdict)) == warned
