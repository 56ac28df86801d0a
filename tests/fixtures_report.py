"""Fixtures: what reports are made from, with answers that try to break out of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.profile import load_profile
from evalgate.gates.rules import judge
from evalgate.gates.verdict import Verdict
from evalgate.records import Manifest, Outcome, Trial
from evalgate.reports.source import Source


class ReportCase(NamedTuple):
    """What one report is made from."""

    run: Source
    verdict: Verdict | None
    baseline: Source | None


HOSTILE_ANSWERS = (
    "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>",
    "\x00\x1b[31mred\x1b[0m \u202egnp.exe \ufeff\u200b \udcff line\none\ttab",
    "amber " * 4000,
    '"><svg onload=alert(1)><style>*{display:none}</style><a href="https://example.com">',
    "{{ 7*7 }} {% include '/etc/passwd' %} javascript:alert(1)",
)
"""What a broken or malicious model may answer; a report shows them and none of them acts."""


@pytest.fixture(scope="session")
def make_report_source(make_judged_run: Callable[..., tuple[Manifest, list[Trial]]]) -> Callable[..., Source]:
    """``make(policy, ...)`` as ``make_judged_run``, with needles at every depth and hostile wrong answers."""
    bands = {"front": (0.0, 0.3333), "middle": (0.3333, 0.6667), "back": (0.6667, 1.0)}

    def spread(trial: Trial) -> Trial:
        low, high = bands[trial.band]
        depth = low + (high - low) * (trial.seed * 0.618034 % 1)
        start = 12 + int(depth * (trial.length - 60))
        wrong = trial.outcome is Outcome.WRONG
        answer = HOSTILE_ANSWERS[trial.seed % len(HOSTILE_ANSWERS)] if wrong else trial.answer
        return dataclasses.replace(trial, depth=depth, needle_start=start, needle_end=start + 16, answer=answer)

    def make(policy: Policy, *, total: int = 135_168, **asked: Any) -> Source:
        manifest, trials = make_judged_run(policy, **asked)
        measured = {"bytes_per_session": {"state": total - 4096, "total": total}}
        named = {
            "suite_body": {"bands": {band: list(edges) for band, edges in bands.items()}},
            "engine": manifest.engine.model_copy(update=measured),
            "hardware": {"cpu": "2 cores <img src=x onerror=alert(1)>"},
        }
        return Source(manifest.model_copy(update=named), [spread(trial) for trial in trials], [])

    return make


@pytest.fixture(scope="session")
def report_cases(make_report_source: Callable[..., Source]) -> dict[str, ReportCase]:
    """One report of each kind: ``pass``, ``block`` (the middle of two tasks), ``open``, ``error``, ``plain``."""
    policy, full, int8 = load_policy("serving-default@1.0.0"), load_profile("full"), load_profile("state-int8")
    base = make_report_source(policy, run_id="baseline", answers={("back",): {Outcome.WRONG: range(3)}})

    def case(name: str, answers: Mapping[Any, dict[Outcome, range]], *, alone: bool = False) -> ReportCase:
        run = make_report_source(policy, run_id=name, profile="state-int8", answers=answers, total=66_000)
        pair = None if alone else (base.manifest, base.trials)
        verdict = judge(run.manifest, run.trials, policy, pair, profile=int8, baseline_profile=None if alone else full)
        return ReportCase(run, verdict, None if alone else base)

    wrong, losing = Outcome.WRONG, ("multikey@8", "overwrite@3")
    lost = {(task, n, "middle"): {wrong: range(5, n // 30)} for task in losing for n in (4096, 8192)}
    block = case("block", lost)
    return {
        "pass": case("pass", {("front",): {wrong: range(2)}}),
        "block": block,
        "open": case("open", {("multikey@8", 8192, "middle"): {wrong: range(35)}}, alone=True),
        "error": case("error", {("single", 1024): {Outcome.ERROR: range(20)}}),
        "plain": ReportCase(block.run, None, block.baseline),
    }
