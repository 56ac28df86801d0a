"""A request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from evalgate.engine.request import Finish, Request, Result
from evalgate.engine.session import Session
from evalgate.kernels.kda_prefill import CHUNK


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """Where a request stands; only the scheduler changes it."""

    id: int
    request: Request
    session: Session | None = None
    adopted: bool = False
    """Whether the session is the caller's: never preempted, and left alive."""
    branch: int = 0
    """How far the prompt lies on stored paths."""
    keep_at: int = 0
    """The last point of its context at which the prefix can be stored."""
    started_at: int = 0
    """Tokens that were there when it was last admitted."""
    turned: bool = False
    """Whether the context is behind it and the question begins."""
    ready: bool = False
    """Whether the whole prompt has been taken in."""
    produced: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    taken: int = 0
    """Produced tokens that the state has seen; all but the last, unless it was preempted."""
    cached: int | None = None
    preemptions: int = 0
    finish: Finish | None = None

    @property
    def base(self) -> int:
        """Tokens before those of the request."""
        return 0 if self.request.parent is None else self.request.parent.tokens

    @property
    def prompt(self) -> int:
        """Token count of the whole prompt."""
        return self.base + len(self.request.tokens)

    @property
    def turn_at(self) -> int:
        """The last grid position of the context."""
        end = self.prompt if self.request.context is None else self.request.context.end
        return end // CHUNK * CHUNK

    def keep_point(self, grid: int) -> int:
        """The last point at which the prefix can be stored and used for the same prompt: one token is always left to
        compute, as an answer starts from what the model makes of it.
        """
        return min(self.turn_at, self.prompt - 1) // grid * grid

    @property
    def order(self) -> tuple[int, int]:
        """Who goes first: the highest priority, then the earliest."""
        return -self.request.priority, self.id

    def result(self) -> Result:
        """What came of it."""
        assert self.finish is not None, f"request {self.id} is not done"
        return Result(
            self.id, self.produced, self.logprobs, self.finish, self.prompt, self.cached or 0, self.preemptions
        )
