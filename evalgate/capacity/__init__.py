"""How many sessions fit: from a model's shape, a profile, a machine's memory and the real lengths of contexts."""

from __future__ import annotations

from evalgate.capacity.ceiling import Ceiling, Machine, Pools, ceiling, pools
from evalgate.capacity.drift import Drift, drift
from evalgate.capacity.lengths import Lengths, read_lengths
from evalgate.capacity.savings import Savings, savings

__all__ = [
    "Ceiling",
    "Drift",
    "Lengths",
    "Machine",
    "Pools",
    "Savings",
    "ceiling",
    "drift",
    "pools",
    "read_lengths",
    "savings",
]
