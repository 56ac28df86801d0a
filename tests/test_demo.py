"""The demo judges itself: a verdict counts as expected only for the expected reason."""

from __future__ import annotations

import pytest
from fixtures_judged import MakeRun, judged

from evalgate.cli.demo import STEPS, Shown
from evalgate.gates.policy import Policy
from evalgate.records import Outcome

BAND = next(step for step in STEPS if step.blocked_band)
TASK = next(step for step in STEPS if step.blocked_task)
PASSES = next(step for step in STEPS if step.expected == "PASS")


def shown(step: object, policy: Policy, make_judged_run: MakeRun, *lost: tuple[str, ...]) -> Shown:
    """A step whose run lost 40 of 100 in the cells named."""
    answers = {parts: {Outcome.WRONG: range(40)} for parts in lost}
    run = make_judged_run(policy, profile="kv-keep-90", answers=answers)
    return Shown(step, judged(run, policy))  # type: ignore[arg-type]  # a Step, found by its fields


@pytest.mark.parametrize(
    ("step", "lost", "good"),
    [
        (PASSES, [], True),
        (PASSES, [("middle",)], False),
        (BAND, [("middle",)], True),
        (BAND, [("middle", "single")], True),
        (BAND, [], False),
        (BAND, [("front",)], False),
        (BAND, [("middle",), ("back",)], False),
        (TASK, [("multikey@8",)], True),
        (TASK, [("single",)], False),
        (TASK, [("multikey@8",), ("single", "back")], False),
    ],
    ids=str,
)
def test_only_the_expected_loss_counts(
    step: object, lost: list[tuple[str, ...]], good: bool, demo: Policy, make_judged_run: MakeRun
) -> None:
    """The right verdict with a loss in another place is not what the demo promised."""
    assert shown(step, demo, make_judged_run, *lost).as_expected is good


def test_mean_hides_what_the_bands_show(demo: Policy, make_judged_run: MakeRun) -> None:
    """A middle band at 60% leaves a mean above 85%, and blocks."""
    one = shown(BAND, demo, make_judged_run, ("middle",))

    assert one.mean > 0.85
    assert one.verdict.exit_code == 1
    assert "middle" in one.verdict.reason
