"""What a policy can decide: the counts that pass and block, and the chance of each for a model of known recall."""

from __future__ import annotations

from typing import NamedTuple

from evalgate.errors import InvalidDocumentError
from evalgate.gates.plan import CellPlan, look, plan
from evalgate.gates.policy import Policy
from evalgate.stats import binom_cdf, binom_sf, block_max, pass_min

TRUE_RECALLS = (0.85, 0.9, 0.95, 0.99)


class RulePower(NamedTuple):
    """Cells of one tier and bar, which all decide alike."""

    tier: str
    bar: float
    n: int
    cells: int
    pass_min: int | None
    """PASS needs k >= this; None: these cells never pass."""
    block_max: int | None
    """BLOCK iff k <= this; None: these cells never block, as a smoke policy's may at a seed or two."""
    passes: dict[float, float]
    """True recall -> chance that a cell of it passes."""
    blocks: dict[float, float]


def power(policy: Policy) -> list[RulePower]:
    """Return what each kind of cell of ``policy`` can decide, in the order of the document.

    Raises InvalidDocumentError: a bar that no outcome reaches at the policy's seed count. Raises UnsupportedError as
    ``look`` does.
    """
    n = look(policy.looks, max(policy.looks))
    assert n is not None, "the largest look is within itself"
    kinds: dict[tuple[str, float, int], list[CellPlan]] = {}
    for planned in plan(policy, n):
        kinds.setdefault((planned.rule.tier, planned.rule.min, planned.n), []).append(planned)
    return [_power(policy, alike) for alike in kinds.values()]


def _power(policy: Policy, alike: list[CellPlan]) -> RulePower:
    planned = alike[0]
    n, bar = planned.n, planned.rule.min
    least = pass_min(n, bar, planned.pass_alpha) if planned.may_pass else None
    most = block_max(n, bar, planned.block_alpha)
    if planned.may_pass and least is None:
        raise InvalidDocumentError(
            f"policy {policy.ref}: {planned.cell} can never pass: at {n} seeds not even {n}/{n} shows a recall of "
            f"{bar}; raise looks, lower min, or raise alpha.pass"
        )
    return RulePower(
        tier=planned.rule.tier,
        bar=bar,
        n=n,
        cells=len(alike),
        pass_min=least,
        block_max=most,
        passes={true: 0.0 if least is None else binom_sf(least, n, true) for true in TRUE_RECALLS},
        blocks={true: 0.0 if most is None else binom_cdf(most, n, true) for true in TRUE_RECALLS},
    )
