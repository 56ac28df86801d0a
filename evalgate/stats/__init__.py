"""Exact binomial statistics of the gate: tails and bounds, the integers that decide at each look, power.

What is shown (tails, bounds, power) is float by scipy.special.
What decides (``pass_bounds``, ``block_bounds``, ``breaks_bounds``, ``mcnemar_min``) is integer arithmetic on exact
rationals, so neither float error nor display rounding can move a verdict.
A float bar such as ``0.9`` means the decimal that it prints as, 9/10.
This part knows nothing of cells, policies or runs.

Sources: Clopper & Pearson 1934; McNemar 1947; Lan & DeMets 1983; Jennison & Turnbull 2000.
"""

from __future__ import annotations

from evalgate.stats.binomial import (
    Interval,
    Number,
    binom_cdf,
    binom_sf,
    clopper_pearson,
    exact,
    lower_bound,
    mcnemar,
    upper_bound,
)
from evalgate.stats.boundaries import (
    block_bounds,
    block_max,
    breaks_bounds,
    breaks_max,
    look_levels,
    mcnemar_min,
    pass_bounds,
    pass_min,
)
from evalgate.stats.kolmogorov import ks_two_sample
from evalgate.stats.power import Chances, chances, expected_longest, seeds_to_pass

__all__ = [
    "Chances",
    "Interval",
    "Number",
    "binom_cdf",
    "binom_sf",
    "block_bounds",
    "block_max",
    "breaks_bounds",
    "breaks_max",
    "chances",
    "clopper_pearson",
    "exact",
    "expected_longest",
    "ks_two_sample",
    "look_levels",
    "lower_bound",
    "mcnemar",
    "mcnemar_min",
    "pass_bounds",
    "pass_min",
    "seeds_to_pass",
    "upper_bound",
]
