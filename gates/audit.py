"""The audit of a gate: does it say what it must where the truth is known?

Negative controls have one right answer each. An A/A gate compares a model with itself, so that every BLOCK is false:
with the budget alpha a gate, that many or more of n have the chance P(Bin(n, alpha) >= blocks).
"""

from __future__ import annotations

from typing import NamedTuple

from evalgate.gates.policy import Policy
from evalgate.gates.verdict import Status, Verdict
from evalgate.stats import binom_sf

ALARM = 0.02
"""Chance of so many false BLOCKs under which the gate is called miscalibrated: 4 of 20 have .016 at a budget of .05."""
CHANCE = 0.05
"""Most right answers that an absent needle may have: a guess among the values that are in sight is right less often."""


class Control(NamedTuple):
    """One check of the gate."""

    name: str
    expected: str
    seen: str
    met: bool


def without_floor(policy: Policy) -> Policy:
    """The policy for a control: a set-up that is broken on purpose is to block, and not to be called broken."""
    return policy.model_copy(update={"validity": policy.validity.model_copy(update={"floor": None})})


def judge_oracle(verdict: Verdict, policy: Policy) -> Control:
    """Every answer right: PASS; under a smoke policy, which never passes, nothing that blocks."""
    expected = Status.PASS if policy.kind == "release" else Status.INCONCLUSIVE
    return _control("oracle", expected, verdict)


def judge_shuffled(verdict: Verdict) -> Control:
    """Every answer that of another needle: BLOCK."""
    return _control("shuffled", Status.BLOCK, verdict)


def judge_absent(right: int, asked: int) -> Control:
    """Questions about needles that are not in the context: hardly any answer is right."""
    expected = f"at most {CHANCE:.0%} right"
    return Control("absent", expected, f"{right} of {asked} right", asked > 0 and right <= CHANCE * asked)


def judge_wrong_model(error: Exception | None) -> Control:
    """A model that is not there: an error, and no run."""
    return Control("wrong-model", "an error", "no error" if error is None else type(error).__name__, error is not None)


def judge_same(verdicts: list[Verdict], policy: Policy) -> Control:
    """A/A gates: no more false BLOCKs than the budget explains, and every one valid."""
    blocks, n = sum(verdict.status is Status.BLOCK for verdict in verdicts), len(verdicts)
    invalid = [verdict.reason for verdict in verdicts if verdict.status is Status.ERROR]
    budget = policy.alpha.block
    chance = binom_sf(blocks, n, budget.absolute + budget.paired + budget.guard)
    seen = f"{blocks} of {n} gates block"
    if invalid:
        seen = f"{len(invalid)} of {n} gates are not valid: {invalid[0]}"
    elif chance <= ALARM:
        seen += f", gate-miscalibrated: so many have a chance of {chance:.2g}"
    return Control("same-model", f"false BLOCKs within chance ({ALARM})", seen, not invalid and chance > ALARM)


def _control(name: str, expected: Status, verdict: Verdict) -> Control:
    seen = str(verdict.status) if verdict.status is expected else verdict.reason
    return Control(name, str(expected), seen, verdict.status is expected)
