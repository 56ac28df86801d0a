"""Fixtures: complete runs of a policy, with the answers that a test asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from fixtures_records import build_manifest

from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.profile import Profile, load_profile
from evalgate.gates.rules import judge
from evalgate.gates.verdict import Verdict
from evalgate.records import Cell, DocumentId, Manifest, Outcome, Trial

Run = tuple[Manifest, list[Trial]]
MakeRun = Callable[..., Run]


@pytest.fixture
def demo() -> Policy:
    """Six primary cells at bar .90, 100 seeds, break margin .08 (at most 3 breaks)."""
    return load_policy("demo")


def changed(policy: Policy, **fields: Any) -> Policy:
    """The policy with other fields, validated as a document would be."""
    return Policy.model_validate({**policy.model_dump(mode="json", by_alias=True), **fields})


def judged(run: Run, policy: Policy) -> Verdict:
    """Judge ``run`` without a baseline, against the shipped profile that its manifest names."""
    return judge(*run, policy, profile=load_profile(run[0].profile.name))


def compared(run: Run, baseline: Run, policy: Policy) -> Verdict:
    """Judge ``run`` against ``baseline``, each against the shipped profile that its manifest names."""
    return judge(
        *run,
        policy,
        baseline,
        profile=load_profile(run[0].profile.name),
        baseline_profile=load_profile(baseline[0].profile.name),
    )


@pytest.fixture(scope="session")
def make_judged_run() -> MakeRun:
    """``make(policy, run_id="run", profile="full", seeds=None, answers={})``: a complete run of the policy's cells.

    Everything is correct but for ``answers``: {parts of a cell: {outcome: seeds}}, such as
    ``{("single", "middle"): {Outcome.WRONG: range(29)}}``; a cell matches where it has all the parts.
    """

    def make(
        policy: Policy,
        *,
        run_id: str = "run",
        profile: str = "full",
        seeds: int | None = None,
        answers: Mapping[tuple[str | int, ...], Mapping[Outcome, Iterable[int]]] | None = None,
    ) -> tuple[Manifest, list[Trial]]:
        planned = policy.looks[0] if seeds is None else seeds
        trials = []
        for cell in policy.rules:
            outcomes = dict.fromkeys(range(planned), Outcome.CORRECT)
            for parts, changes in (answers or {}).items():
                if set(parts) <= set(cell):
                    outcomes |= {seed: outcome for outcome, at in changes.items() for seed in at}
            trials += [judged_trial(cell, seed, outcome) for seed, outcome in outcomes.items()]
        return judged_manifest(policy, run_id, load_profile(profile), planned), trials

    return make


def judged_manifest(policy: Policy, run_id: str, profile: Profile, seeds: int) -> Manifest:
    """Manifest of a complete run of ``policy``'s suite whose engine ran what ``profile`` asks."""
    name, _, version = policy.suite.partition("@")
    return build_manifest(
        profile,
        seeds,
        policy.rules,
        run_id=run_id,
        status="complete",
        suite=DocumentId(name=name, version=version, digest="5" * 64),
        suite_body={"name": name},
    )


def judged_trial(cell: Cell, seed: int, outcome: Outcome) -> Trial:
    """One trial of ``cell`` on haystack ``seed``; its prompt depends on nothing else."""
    correct = outcome is Outcome.CORRECT
    return Trial(
        trial_id=hashlib.sha256(f"{seed} {cell}".encode()).hexdigest()[:16],
        context_id=f"context-{seed}-{cell.length}",
        seed=seed,
        stream=0,
        task=cell.task,
        form="code",
        length=cell.length,
        band=cell.band,
        depth={"front": 0.1, "middle": 0.5}.get(cell.band, 0.9),
        needle_start=500,
        needle_end=512,
        arm=cell.arm,
        same_form_in_context=1,
        facts_in_context=3,
        prompt_sha256=hashlib.sha256(f"prompt {seed} {cell}".encode()).hexdigest(),
        expected="amber tower",
        answer={Outcome.CORRECT: "amber tower", Outcome.EMPTY: "", Outcome.ERROR: ""}.get(outcome, "wrong"),
        outcome=outcome,
        prompt_tokens=1000,
        cached_tokens=960,
        completion_tokens=4 if correct else 12,
        finish_reason={Outcome.TRUNCATED: "length", Outcome.ERROR: "error"}.get(outcome, "stop"),
        latency_s=0.25,
        batch_id="0",
        attempt=1,
    )
