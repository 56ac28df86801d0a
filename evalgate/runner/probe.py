"""A measured probe: how many of the plan's tokens a second this machine takes in, over a few whole haystacks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from evalgate.runner.plan import Plan, Speed, StreamCost
from evalgate.runner.request import Bench
from evalgate.runner.run import ask_haystack

PASSES = 3
"""Haystacks that are timed; the median of them is told, so one that something else disturbed does not count."""
LIMIT_S = 10.0
"""Seconds after which no haystack is begun that would end later; a slower model is judged by what was timed by then."""


def probe(bench: Bench, plan: Plan, clock: Callable[[], float] = time.perf_counter) -> Speed:
    """Time a few haystacks of the longest stream that ``LIMIT_S`` allows, after one of the shortest that warms up.

    ``clock`` gives seconds. Raises what the backend raises.
    """

    def timed(seed: int, cost: StreamCost) -> float:
        started = clock()
        stream = bench.source.streams[cost.stream]
        ask_haystack(bench, bench.source.build(seed, stream), stream)
        return clock() - started

    shortest = min(plan.streams, key=lambda cost: cost.tokens)
    spent = warm_up = timed(0, shortest)
    chosen = _longest_within(LIMIT_S - spent, plan.streams, warm_up / shortest.tokens) or shortest
    expected = warm_up * chosen.tokens / shortest.tokens
    times: list[float] = []
    while len(times) < PASSES and spent + min([expected, *times]) <= LIMIT_S:
        times.append(timed(1 + len(times), chosen))
        spent += times[-1]
    if not times:  # so slow that the first haystack has to do
        chosen, times = shortest, [warm_up]
    return Speed(
        tokens_per_second=chosen.tokens / statistics.median(times),
        haystacks=len(times),
        stream=chosen.stream,
        tokens=chosen.tokens,
        seconds=round(spent, 3),
    )


def _longest_within(seconds: float, costs: list[StreamCost], seconds_per_token: float) -> StreamCost | None:
    """The costliest stream of which ``PASSES`` haystacks take no longer than ``seconds``."""
    fitting = [cost for cost in costs if PASSES * cost.tokens * seconds_per_token <= seconds]
    return max(fitting, key=lambda cost: cost.tokens, default=None)
