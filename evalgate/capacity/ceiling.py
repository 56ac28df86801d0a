"""How many sessions a machine holds: at one length, and by drawing lengths until the memory is full."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evalgate.capacity.lengths import Lengths
from evalgate.engine.budget import SessionCost
from evalgate.errors import DoesNotFitError

DRAWS = 2000
SEED = 0
SURE = 0.99
"""Share of the draws in which a ceiling holds that is called sure."""


class Machine(NamedTuple):
    """Memory in bytes: what there is, what the weights take, and which part of the rest caches may fill."""

    memory: int
    weights: int
    share: float

    @property
    def cache(self) -> int:
        """Bytes for sessions.  Raises DoesNotFitError: the weights leave none."""
        left = int((self.memory - self.weights) * self.share)
        if left <= 0:
            raise DoesNotFitError(
                f"the weights take {self.weights:,} bytes of {self.memory:,}, which leaves nothing for sessions; name "
                "a larger machine, or several (--memory is of all of them together)"
            )
        return left


class Ceiling(NamedTuple):
    """Sessions at a time under one profile."""

    mean: int
    """Were every context as long as the mean."""
    p95: int
    """Were every context as long as 95% of them are at most."""
    typical: int
    """The median, over draws of contexts from the distribution, of how many fit."""
    sure: int
    """So many fit in 99% of the draws: what to plan with."""
    session_mean: int
    """Bytes of a session on average."""


class Pools(NamedTuple):
    """Memory parted between contexts up to a length and longer ones, by what each kind fills of it."""

    threshold: int
    short_share: float
    """Of the memory."""
    short: int
    """Sessions, sure, in their part."""
    long: int


def costs(cost: SessionCost, lengths: Lengths, snapshots: int, page: int) -> npt.NDArray[np.int64]:
    """Bytes ``[n]`` of a session of each length; each different length is reckoned once."""
    different, place = np.unique(lengths.tokens, return_inverse=True)
    each = np.array([cost.session(int(tokens), snapshots, page) for tokens in different], dtype=np.int64)
    return each[place]


def ceiling(cost: SessionCost, lengths: Lengths, cache: int, *, snapshots: int = 0, page: int = 64) -> Ceiling:
    """How many sessions fit into ``cache`` bytes.  Raises DoesNotFitError where not even the longest does alone."""
    each = costs(cost, lengths, snapshots, page)
    if each[-1] > cache:
        raise DoesNotFitError(
            f"a session of {int(lengths.tokens[-1]):,} tokens takes {int(each[-1]):,} bytes, {cache:,} are left for "
            "sessions; name a larger machine, or a profile that keeps less"
        )
    typical, sure = _drawn(each, cache)
    middle = cost.session(round(lengths.mean), snapshots, page)
    return Ceiling(
        mean=cache // middle,
        p95=cache // cost.session(lengths.quantile(0.95), snapshots, page),
        typical=typical,
        sure=sure,
        session_mean=round(float(each.mean())),
    )


def pools(
    cost: SessionCost, lengths: Lengths, cache: int, threshold: int, *, snapshots: int = 0, page: int = 64
) -> Pools | None:
    """Memory parted at ``threshold`` tokens; None where a side has no requests or its part holds no session.

    Many short requests then cannot be held up by one long one, which pays for it with a part that lies idle at times.
    """
    each = costs(cost, lengths, snapshots, page)
    short, long = each[lengths.tokens <= threshold], each[lengths.tokens > threshold]
    if not len(short) or not len(long):
        return None
    share = float(short.sum() / each.sum())
    parts = int(cache * share), cache - int(cache * share)
    if short[-1] > parts[0] or long[-1] > parts[1]:
        return None
    return Pools(threshold, share, _drawn(short, parts[0])[1], _drawn(long, parts[1])[1])


def _drawn(each: npt.NDArray[np.int64], cache: int) -> tuple[int, int]:
    """(median, sure) number of sessions, drawn one by one, that fit."""
    draw = np.random.default_rng(SEED)
    most = int(cache // each[0])
    # Drawing all that could ever fit would be wasteful where a few are long: enough for the mean, and again at need.
    width = min(most, int(1.5 * cache / each.mean()) + 64)
    fitting = np.empty(DRAWS, dtype=np.int64)
    for i in range(DRAWS):
        filled = np.cumsum(draw.choice(each, size=width))
        while filled[-1] <= cache and len(filled) < most:
            filled = np.concatenate([filled, filled[-1] + np.cumsum(draw.choice(each, size=width))])
        fitting[i] = np.searchsorted(filled, cache, side="right")
    return int(np.median(fitting)), int(np.quantile(fitting, 1 - SURE, method="lower"))
