"""What is asked of an engine, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from evalgate.engine.session import Session
from evalgate.engine.visibility import ContextSpan

Finish = Literal["stop", "length", "error", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and how far to go on from it."""

    tokens: Sequence[int]
    """Token ids; those after the parent's where there is one."""
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    context: ContextSpan | None = None
    """The tokens that the prompt asks about; None: all of it. What a profile does once, it does at the last grid
    position of this span."""
    parent: Session | None = None
    """Fork from this session instead of starting from nothing; it must live until the request is done."""
    priority: int = 0
    """Higher goes first, is preempted last, and keeps its stored prefix longer."""
    reuse: bool = True
    """Whether to start from a stored prefix and to store this one."""
    pin: bool = False
    """Keep the prefix up to the last grid point until it is unpinned."""
    cuts: tuple[int, ...] = ()
    """Token counts at which a prefill pass has to end, on the grid or off it."""


class Result(NamedTuple):
    """What came of a request."""

    id: int
    tokens: list[int]
    """Without the stop token."""
    logprobs: list[float]
    """Of each token, when it was chosen."""
    finish: Finish
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were taken from a stored prefix or a parent, the first time that it was admitted."""
    preemptions: int
