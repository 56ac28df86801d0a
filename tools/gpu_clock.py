"""How long the device takes for something: medians by device events, whatever the processor does meanwhile.

Work is queued behind a pause of the device, so that the time to launch a small kernel does not count as its own; on a
processor (for tests) the wall clock is read instead.
"""

from __future__ import annotations

import itertools
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

Run = Callable[[], object]

COLD = 512 * 2**20
"""Bytes that inputs in rotation have together: several times any cache of the device."""
MOST_INPUTS = 64
LEAST, MOST = 5, 60
"""Repetitions that a median is of."""
SECONDS = 0.3
"""Device time that one median is worth."""
LONGEST_PAUSE = 1.0
"""Seconds; a launcher that takes longer than that to queue its work waits for its device anyway."""
CYCLES = 2.0e9
"""Cycles of the device in a second, or somewhat more than it has."""


class Rates(NamedTuple):
    """What the device does at best, measured here."""

    copy: float
    """Bytes in a second, read and written ones counted both."""
    product: float
    """Operations in a second of a bf16 matrix product, multiplications and additions counted both."""


class OutOfTimeError(Exception):
    """The minutes are over."""


class Clock:
    """Takes medians until ``minutes`` are over."""

    def __init__(self, device: torch.device, minutes: float) -> None:
        self.device = device
        self._end = time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self._end - time.monotonic()

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Raise OutOfTimeError once the minutes are over, even inside of a tuner that tries its configurations."""

        def over(*_: object) -> None:
            raise OutOfTimeError

        before = signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, max(self.left, 1e-6))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def median(self, runs: Sequence[Run]) -> float:
        """Median seconds of one run; ``runs`` do the same on different inputs and take turns."""
        runs[0]()  # compiled here
        self._wait()
        before = time.perf_counter()
        runs[0]()
        queued = time.perf_counter() - before
        self._wait()
        took = max(time.perf_counter() - before, 1e-6)
        count = min(max(int(SECONDS / took), LEAST), MOST)
        turns = [runs[at % len(runs)] for at in range(1, count + 1)]
        return statistics.median(self._on_device(turns, queued) if self.device.type == "cuda" else _on_host(turns))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _on_device(self, turns: Sequence[Run], queued: float) -> list[float]:
        cuda: Any = torch.cuda  # which has no types here
        events = [cuda.Event(enable_timing=True) for _ in range(len(turns) + 1)]
        pause = min(2 * queued * len(turns), LONGEST_PAUSE)
        cuda._sleep(int(pause * CYCLES))  # noqa: SLF001 - nothing else keeps the device waiting
        events[0].record()
        for turn, event in zip(turns, events[1:], strict=True):
            turn()
            event.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(events)]


def _on_host(turns: Sequence[Run]) -> list[float]:
    times = []
    for turn in turns:
        started = time.perf_counter()
        turn()
        times.append(time.perf_counter() - started)
    return times


def rotation(nbytes: int) -> int:
    """How many inputs of ``nbytes`` take turns, so that none is found in a cache."""
    return min(max(-(-COLD // max(nbytes, 1)), 1), MOST_INPUTS)


def measured_rates(clock: Clock, copied: int = 2**30, side: int = 8192) -> Rates:
    """Copy ``copied`` bytes, and multiply two bf16 squares of ``side``."""
    source = torch.zeros(copied // 4, device=clock.device)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / clock.median([lambda: target.copy_(source)])
    a = torch.ones(side, side, dtype=torch.bfloat16, device=clock.device)
    product = 2 * side**3 / clock.median([lambda: a @ a])
    return Rates(copy, product)
