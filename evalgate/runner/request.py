"""What a run was asked to do, and everything that is checked before the first token."""

from __future__ import annotations

from dataclasses import dataclass

from evalgate.backends.base import Backend, check_arms
from evalgate.backends.registry import open_backend
from evalgate.errors import DoesNotFitError, RefusedError
from evalgate.gates.profile import Profile, load_profile
from evalgate.tasks.haystack import Builder
from evalgate.tasks.suite import Suite, load_suite


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A suite x model x profile x backend, and how many seeds of which seed set."""

    suite: str
    model: str
    profile: str = "full"
    backend: str = "native"
    dtype: str = "fp32"
    device: str = "cpu"
    seeds: int = 100
    seed_set: str = "main"

    def __post_init__(self) -> None:
        if not self.model.strip():
            # A folder of no name is the working folder, which nobody means.
            raise RefusedError(f"--model {self.model!r}: expected an embedded model, a checkpoint folder or a hub id")
        if self.seeds < 1:
            raise RefusedError(f"--seeds {self.seeds}: expected at least 1")
        check_seed_set(self.seed_set)


def check_seed_set(name: str) -> None:
    """Raise RefusedError for a name that no seed set may have."""
    if not name or any(c.isspace() or c in "/\\" for c in name):
        raise RefusedError(f"--seed-set {name!r}: expected a name without blanks or slashes")


@dataclass(frozen=True, slots=True)
class Bench:
    """A request made real: documents loaded, weights loaded, haystacks ready to be built."""

    request: RunRequest
    suite: Suite
    profile: Profile
    backend: Backend
    builder: Builder


def prepare(request: RunRequest) -> Bench:
    """Load and check everything that a run needs.

    Raises UnknownNameError, InvalidDocumentError, TamperedError (documents), CheckpointError (weights),
    UnsupportedError (profile, arm) and DoesNotFitError (window, memory, too short for the needles).
    """
    suite = load_suite(request.suite)
    profile = load_profile(request.profile)
    backend = open_backend(
        request.backend,
        request.model,
        profile.sections,
        profile.name,
        dtype=request.dtype,
        device=request.device,
        max_tokens=suite.lengths[-1],
    )
    longest = suite.lengths[-1]
    if longest > backend.window:
        fitting = [length for length in suite.lengths if length <= backend.window]
        advice = f"lengths that fit: {fitting}" if fitting else "no length of the suite fits"
        raise DoesNotFitError(
            f"suite {suite.ref} asks {longest} tokens, model {request.model} has a window of {backend.window}; {advice}"
        )
    check_arms(suite.arms, backend.arms())
    return Bench(request, suite, profile, backend, Builder(suite, backend.tokenizer, request.seed_set))
