"""What a policy can decide: the counts that pass and block, and what becomes of a model of known recall."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple

from evalgate.errors import InvalidDocumentError
from evalgate.gates.plan import CellPlan, first_seeds, plan
from evalgate.gates.policy import Policy
from evalgate.stats import binom_sf, chances

TRUE_RECALLS = (0.85, 0.9, 0.95, 0.99)
DETECTED = 0.8
"""Chance at which a drop counts as one that a policy detects."""


class RulePower(NamedTuple):
    """Cells of one tier, bar and break margin, which all decide alike."""

    tier: str
    bar: float
    n: int
    """Seeds of the last look."""
    cells: int
    pass_min: int | None
    """PASS needs k >= this at the last look; None: these cells never pass."""
    block_max: int | None
    """BLOCK iff k <= this at the last look; None: these cells never block, as a smoke policy's may at a seed or two."""
    passes: dict[float, float]
    """True recall -> chance that a cell of it passes its bar."""
    blocks: dict[float, float]
    """True recall -> chance that a cell of it blocks at its bar."""
    looks: tuple[int, ...]
    pass_at: tuple[int | None, ...]
    """``pass_min`` of every look."""
    block_at: tuple[int | None, ...]
    expected_n: dict[float, float]
    """True recall -> seeds that one cell is asked on average."""

    breaks_at: tuple[int | None, ...]
    """Breaks against a baseline that a PASS allows at every look; None: no number does."""

    @property
    def detected(self) -> float | None:
        """The highest true recall, to a thousandth, that blocks with a chance of ``DETECTED``; None: none does."""

        def blocks(thousandths: int) -> bool:
            return chances(self.looks, self.pass_at, self.block_at, thousandths / 1000).blocks >= DETECTED

        found = bisect_left(range(1001), True, key=lambda missing: blocks(1000 - missing))
        return None if found > 1000 else (1000 - found) / 1000

    @property
    def detected_lost(self) -> float | None:
        """The smallest share of a baseline's answers, to a thousandth, whose loss keeps PASS away at the last look.

        With a chance of ``DETECTED``; None: no cell passes against a baseline.
        """
        most = self.breaks_at[-1]
        if most is None:
            return None
        found = bisect_left(range(1001), True, key=lambda lost: binom_sf(most + 1, self.n, lost / 1000) >= DETECTED)
        return found / 1000

    @property
    def first(self) -> dict[str, int | None]:
        """Verdict -> seeds of the first look that can give it; None: none can, as a guard never passes."""
        against = [None if k is None else breaks for k, breaks in zip(self.pass_at, self.breaks_at, strict=True)]
        reached = {"PASS": self.pass_at, "PASS against a baseline": against, "BLOCK": self.block_at}
        return {
            verdict: next((n for n, count in zip(self.looks, counts, strict=True) if count is not None), None)
            for verdict, counts in reached.items()
        }

    @property
    def pass_words(self) -> str:
        """``98/190/373/736``: the counts that pass, look by look."""
        return _words(self.pass_at)

    @property
    def block_words(self) -> str:
        """The counts that block, look by look."""
        return _words(self.block_at)


def power(policy: Policy, recalls: Sequence[float] = TRUE_RECALLS) -> list[RulePower]:
    """Return what each kind of cell of ``policy`` can decide, in the order of the document.

    ``recalls`` are the true recalls whose fate is told.

    Raises InvalidDocumentError: a bar that no outcome reaches at the policy's seed count.
    """
    kinds: dict[tuple[str, float, Fraction], list[CellPlan]] = {}
    for planned in plan(policy):
        kinds.setdefault((planned.rule.tier, planned.rule.min, planned.margin), []).append(planned)
    return [_power(policy, alike, recalls) for alike in kinds.values()]


def expected_haystacks(policy: Policy, recalls: Sequence[float] = TRUE_RECALLS) -> dict[float, float]:
    """True recall of every cell -> haystacks per stream that `check` draws on average, by the bars alone.

    Cells are taken as independent and a haystack is drawn while any primary cell is open; a baseline's break bound
    and a stop at the first BLOCK are left out.
    """
    steps = list(zip([0, *policy.looks], policy.looks, strict=False))
    kinds = [row for row in power(policy) if row.tier == "primary"]
    expected = {}
    for true in recalls:
        decided = [(chances(row.looks, row.pass_at, row.block_at, true).decided, row.cells) for row in kinds]
        closed = [0.0, *(prod(by[j] ** cells for by, cells in decided) for j in range(len(policy.looks)))]
        drawn = sum((n - before) * (1 - by) for (before, n), by in zip(steps, closed, strict=False))
        expected[true] = max(drawn, float(first_seeds(policy)))
    return expected


def _power(policy: Policy, alike: list[CellPlan], recalls: Sequence[float]) -> RulePower:
    planned = alike[0]
    looks, bar, bounds = planned.looks, planned.rule.min, planned.bounds
    pass_at, block_at = tuple(at.pass_min for at in bounds), tuple(at.block_max for at in bounds)
    if planned.may_pass and pass_at[-1] is None:
        raise InvalidDocumentError(
            f"policy {policy.ref}: {planned.cell} can never pass: at {looks[-1]} seeds not even {looks[-1]}/{looks[-1]}"
            f" shows a recall of {bar}; raise looks, lower min, or raise alpha.pass"
        )
    fates = {true: chances(looks, pass_at, block_at, true) for true in recalls}
    return RulePower(
        tier=planned.rule.tier,
        bar=bar,
        n=looks[-1],
        cells=len(alike),
        pass_min=pass_at[-1],
        block_max=block_at[-1],
        passes={true: fate.passes for true, fate in fates.items()},
        blocks={true: fate.blocks for true, fate in fates.items()},
        looks=looks,
        pass_at=pass_at,
        block_at=block_at,
        expected_n={true: fate.expected_n for true, fate in fates.items()},
        breaks_at=tuple(at.breaks_max for at in bounds),
    )


def _words(counts: tuple[int | None, ...]) -> str:
    return "/".join("never" if count is None else str(count) for count in counts)
