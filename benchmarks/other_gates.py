"""Gates of other projects, on counts of the same answers: what they would say at an equal number of seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

ALPHA = 0.05
SIGMA = 0.5
"""Standard deviation that the fixed-sigma test takes for every task: that of a coin."""
REFERENCE = 0.95
"""Recall of a good model, as one would have recorded it."""


class Words(NamedTuple):
    """What each gate said, (gates,) each; neither is inconclusive."""

    passed: npt.NDArray[np.bool_]
    blocked: npt.NDArray[np.bool_]


def other_gates(right: npt.NDArray[np.int64], n: int, bar: float) -> dict[str, Words]:
    """Judge ``right`` (gates, cells) of n answers by each of the other gates.

    - point: PASS iff k/n >= bar in every cell, else BLOCK;
    - t: PASS iff mean - t s/sqrt(n) >= bar in every cell, BLOCK iff mean + t s/sqrt(n) < bar in any;
    - fixed-sigma, as in TensorRT-LLM's accuracy suite: PASS iff k/n >= reference + z sqrt(2 sigma^2 / n), else BLOCK;
      with the bar as its reference, and with ``REFERENCE``.
    """
    share = right / n
    half = stdtrit(n - 1, 1 - ALPHA) * np.sqrt(share * (1 - share) / (n - 1))
    upper = (share + half < bar).any(axis=1)
    found = {"point": _or_block((share >= bar).all(axis=1)), "t": Words((share - half >= bar).all(axis=1), upper)}
    for reference in (bar, REFERENCE):
        least = reference + float(ndtri(ALPHA)) * float(np.sqrt(2 * SIGMA**2 / n))
        found[f"fixed-sigma {reference:.2f}"] = _or_block((share >= least).all(axis=1))
    return found


def _or_block(passed: npt.ArrayLike) -> Words:
    said = np.asarray(passed, bool)
    return Words(said, ~said)
