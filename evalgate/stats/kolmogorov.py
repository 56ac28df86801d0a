"""Whether two samples come from one distribution (Kolmogorov 1933, Smirnov 1939)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def ks_two_sample(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> tuple[float, float]:
    """(largest distance of the distribution functions, its p-value by the limiting distribution).

    Both samples ``[n]`` and ``[m]`` ascend; neither is empty.
    """
    from scipy.special import kolmogorov

    points = np.concatenate([first, second])
    below = [np.searchsorted(sample, points, side="right") / len(sample) for sample in (first, second)]
    distance = float(np.abs(below[0] - below[1]).max())
    size = len(first) * len(second) / (len(first) + len(second))
    return distance, float(kolmogorov(distance * np.sqrt(size)))
