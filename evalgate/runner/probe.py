"""A short measured probe: how many tokens a second this model takes in here."""

from __future__ import annotations

import time

from evalgate.runner.request import Bench
from evalgate.runner.run import ask_haystack


def probe(bench: Bench) -> float:
    """Tokens per second over one haystack of the shortest stream, after one that warms up."""
    stream = min(bench.builder.streams, key=lambda s: s.longest)
    ask_haystack(bench, bench.builder.build(0, stream), stream)
    haystack = bench.builder.build(1, stream)
    started = time.perf_counter()
    ask_haystack(bench, haystack, stream)
    return len(haystack.tokens) / (time.perf_counter() - started)
