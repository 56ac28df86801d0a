"""The plan of one judgement: at which seeds each cell is judged, and which share of the error budget it has."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from evalgate.gates.policy import CellRule, Policy
from evalgate.records import Cell
from evalgate.stats import block_bounds, breaks_bounds, exact, look_levels, pass_bounds


class Bounds(NamedTuple):
    """The integers that decide at one look."""

    n: int
    pass_min: int | None
    """None in a cell that may not pass, and where no count passes."""
    block_max: int | None
    breaks_max: int | None
    paired_alpha: Fraction
    """What McNemar may spend at this look."""


class CellPlan(NamedTuple):
    """What is promised for one cell."""

    cell: Cell
    rule: CellRule
    looks: tuple[int, ...]
    """The policy's, and ``n_guard`` alone in a guard cell."""
    pass_alpha: Fraction
    block_alpha: Fraction
    """Its part of the absolute budget, or of the guard budget."""
    paired_alpha: Fraction
    margin: Fraction
    may_pass: bool
    """False in guard cells and smoke policies: they only block."""

    @property
    def primary(self) -> bool:
        """Whether the cell must pass."""
        return self.rule.tier == "primary"

    @property
    def bounds(self) -> list[Bounds]:
        """The integers of every look, all of which are fixed before the first seed."""
        looks, bar = self.looks, exact(self.rule.min)
        passes = pass_bounds(looks, bar, self.pass_alpha) if self.may_pass else (None,) * len(looks)
        blocks = block_bounds(looks, bar, self.block_alpha)
        breaks = breaks_bounds(looks, self.margin, self.pass_alpha)
        levels = look_levels(looks, self.paired_alpha)
        return [Bounds(*parts) for parts in zip(looks, passes, blocks, breaks, levels, strict=True)]

    def at(self, n: int) -> Bounds:
        """The integers of the look of ``n`` seeds."""
        return self.bounds[self.looks.index(n)]


def look(looks: Sequence[int], seeds: int) -> int | None:
    """Return the largest look not above ``seeds``, or None."""
    return max((n for n in looks if n <= seeds), default=None)


def seeds_needed(policy: Policy) -> int:
    """Seeds that a run needs so that every cell can be judged at every look."""
    return max(policy.looks[-1], first_seeds(policy))


def first_seeds(policy: Policy) -> int:
    """Seeds of the first look, with those that guard cells need."""
    guards = any(rule.tier == "guard" for rule in policy.cells)
    return max(policy.looks[0], policy.n_guard) if guards else policy.looks[0]


def plan(policy: Policy) -> list[CellPlan]:
    """Plan every cell of ``policy``; each budget is split evenly over its cells."""
    rules = policy.rules
    primary = sum(rule.tier == "primary" for rule in rules.values())
    guard = len(rules) - primary
    budget = policy.alpha.block
    return [
        CellPlan(
            cell=cell,
            rule=rule,
            looks=tuple(policy.looks) if rule.tier == "primary" else (policy.n_guard,),
            pass_alpha=exact(policy.alpha.pass_),
            block_alpha=exact(budget.absolute) / primary if rule.tier == "primary" else exact(budget.guard) / guard,
            paired_alpha=exact(budget.paired) / primary,
            margin=exact(policy.margin(rule)),
            may_pass=policy.kind == "release" and rule.tier == "primary",
        )
        for cell, rule in rules.items()
    ]
