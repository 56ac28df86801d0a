"""Other ways to the same answer: from nothing, in odd chunks, from a stored prefix, and after preemptions.

Each is a way that a serving engine takes under load; a suite that asks the same question by two of them tells a model
that forgot from an engine that lost something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalgate.engine.llm import GRID, LLM
from evalgate.engine.request import Request, Result

ODD_CHUNK = 3 * GRID
"""A chunk that divides no usual one."""


def cold(llm: LLM, requests: Sequence[Request]) -> list[Result]:
    """Each prompt from its first token, nothing stored and nothing shared."""
    return llm.run(requests)


def warm(llm: LLM, requests: Sequence[Request]) -> list[Result]:
    """Each prompt for the third time: the first stores its prefix, the second and the third start from it."""
    asked = [replace(request, reuse=True) for request in requests]
    pinned = replace(asked[0], pin=True, max_tokens=0)
    llm.run([pinned])
    try:
        llm.run(asked)
        return llm.run(asked)
    finally:
        llm.unpin(pinned)


def resumed(llm: LLM, requests: Sequence[Request]) -> list[Result]:
    """Each prompt preempted twice: once after its first pass, and once when it has begun to answer."""
    numbers = [llm.submit(request) for request in requests]
    results: dict[int, Result] = {}

    def step() -> None:
        results.update({result.id: result for result in llm.step()})

    def preempt() -> None:
        for number in numbers:
            llm.preempt(number)

    try:
        step()
        preempt()
        while len(results) < len(numbers) and not any(llm.produced(number) > 1 for number in numbers):
            step()
        preempt()
        while len(results) < len(numbers):
            step()
    finally:
        for number in numbers:
            llm.cancel(number)
    return [results[number] for number in numbers]


def odd_cuts(context_end: int, prompt: int) -> tuple[int, ...]:
    """Where passes end in arm ``chunked``: odd chunks, and one token before and after three grid points."""
    chunks = range(ODD_CHUNK, prompt, ODD_CHUNK)
    around = (context_end * quarter // 4 // GRID * GRID for quarter in (1, 2, 4))
    return tuple(sorted({*chunks, *(point + step for point in around for step in (-1, 1) if point)}))
