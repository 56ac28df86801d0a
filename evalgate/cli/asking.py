"""What is asked of a model under a policy: the one way from a command's options to a run request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalgate.data_class import DataClass
from evalgate.errors import MismatchError

if TYPE_CHECKING:
    from evalgate.gates.policy import Policy
    from evalgate.records import AnswerRule
    from evalgate.runner import LoadOptions, RunRequest, ServerOptions


def under_policy(
    rules: Policy,
    suite: str,
    model: str,
    *,
    profile: str,
    backend: str,
    dtype: str,
    seed_set: str,
    device: str = "cpu",
    backend_limit: DataClass | None = None,
    store_limit: DataClass = DataClass.INTERNAL,
    answers: AnswerRule | None = None,
    keep_days: int | None = None,
    redact: list[str] | None = None,
    thinking_tokens: int | None = None,
    server: ServerOptions | None = None,
    load: LoadOptions | None = None,
) -> RunRequest:
    """A run of ``suite`` for as many seeds as ``rules`` may need; of each privacy rule the stricter holds.

    Raises MismatchError where the policy judges another suite, and what a request raises.
    """
    from evalgate.gates.plan import seeds_needed
    from evalgate.runner import RunRequest
    from evalgate.tasks.suite import load_suite

    asked = load_suite(suite).ref
    if rules.suite != asked:
        raise MismatchError(f"policy {rules.ref} judges suite {rules.suite}, asked to run {asked}; choose one for it")
    return RunRequest(
        suite=suite,
        model=model,
        profile=profile,
        backend=backend,
        dtype=dtype,
        device=device,
        seeds=seeds_needed(rules),
        seed_set=seed_set,
        backend_limit=backend_limit,
        store_limit=store_limit,
        answers=rules.privacy.strictest(answers),
        days=rules.privacy.shortest(keep_days),
        redact=(*rules.privacy.redact, *(redact or ())),
        thinking_tokens=thinking_tokens,
        server=server,
        load=load,
    )
