"""Whether requests are still as long as those that a capacity was planned for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evalgate.capacity.lengths import SHOWN, Lengths
from evalgate.stats import ks_two_sample

BINS = 10
LEAST = 1e-4
"""Share that stands for an empty bin, so that its logarithm is finite."""
MODERATE, LARGE = 0.1, 0.25
"""Usual readings of a PSI: below the first nothing has moved, above the second the population is another one."""


class Drift(NamedTuple):
    """A new distribution of lengths beside the planned one."""

    quantiles: dict[str, tuple[int, int]]
    """Name -> planned, new."""
    psi: float
    """Population stability index over the tenths of the planned distribution."""
    ks: float
    """Largest distance of the two distribution functions (Kolmogorov-Smirnov)."""
    p_value: float

    @property
    def reading(self) -> str:
        """In a word."""
        return "none" if self.psi < MODERATE else "moderate" if self.psi < LARGE else "large"


def drift(planned: Lengths, new: Lengths) -> Drift:
    """Compare two distributions."""
    edges = np.unique([planned.quantile(i / BINS) for i in range(1, BINS)])
    before, after = (_shares(lengths, edges) for lengths in (planned, new))
    psi = float(((after - before) * np.log(after / before)).sum())
    distance, p_value = ks_two_sample(planned.tokens, new.tokens)
    return Drift(
        {f"p{share * 100:g}": (planned.quantile(share), new.quantile(share)) for share in SHOWN}, psi, distance, p_value
    )


def _shares(lengths: Lengths, edges: np.ndarray) -> np.ndarray:
    counts = np.bincount(np.searchsorted(edges, lengths.tokens, side="left"), minlength=len(edges) + 1)
    return np.maximum(counts / len(lengths), LEAST)
