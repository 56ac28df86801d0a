"""The plan of one judgement: how many seeds count in each cell, and which share of the error budget it has."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from evalgate.errors import UnsupportedError
from evalgate.gates.policy import CellRule, Policy
from evalgate.records import Cell
from evalgate.stats import exact


class CellPlan(NamedTuple):
    """What is promised for one cell at the look."""

    cell: Cell
    rule: CellRule
    n: int
    """Seeds that count: 0 .. n-1."""
    pass_alpha: Fraction
    block_alpha: Fraction
    """Its part of the absolute budget, or of the guard budget."""
    paired_alpha: Fraction
    margin: Fraction
    may_pass: bool
    """False in guard cells and smoke policies: they only block."""


def look(looks: Sequence[int], seeds: int) -> int | None:
    """Return the largest look not above ``seeds``, or None.

    Raises UnsupportedError: more than one look, whose boundaries are not those of a fixed n.
    """
    if len(looks) > 1:
        raise UnsupportedError(
            f"policy has looks {list(looks)}: sequential looks come later; keep one seed count, such as [{looks[-1]}]"
        )
    return max((n for n in looks if n <= seeds), default=None)


def seeds_needed(policy: Policy) -> int:
    """Seeds that a run needs so that every cell can be judged; raises UnsupportedError as ``look`` does."""
    n = look(policy.looks, max(policy.looks))
    assert n is not None, "the largest look is within itself"
    return max(n, *(policy.n_guard for rule in policy.rules.values() if rule.tier == "guard"), 0)


def plan(policy: Policy, n: int) -> list[CellPlan]:
    """Plan every cell of ``policy`` at the look of ``n`` seeds; each budget is split evenly over its cells."""
    rules = policy.rules
    primary = sum(rule.tier == "primary" for rule in rules.values())
    guard = len(rules) - primary
    budget = policy.alpha.block
    return [
        CellPlan(
            cell=cell,
            rule=rule,
            n=n if rule.tier == "primary" else policy.n_guard,
            pass_alpha=exact(policy.alpha.pass_),
            block_alpha=exact(budget.absolute) / primary if rule.tier == "primary" else exact(budget.guard) / guard,
            paired_alpha=exact(budget.paired) / primary,
            margin=exact(policy.margin(rule)),
            may_pass=policy.kind == "release" and rule.tier == "primary",
        )
        for cell, rule in rules.items()
    ]
