"""`evalgate run --plan`: what a run will take, and what its policy can then decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from evalgate.cli import console
from evalgate.errors import RefusedError

if TYPE_CHECKING:
    from evalgate.gates.power import RulePower
    from evalgate.runner import Plan, RunRequest


def show_plan(
    request: RunRequest, policy: str | None, *, rate: float | None, recalls: Sequence[float] | None, json: bool
) -> None:
    """Print the plan of ``request``; with a policy, its chances at true ``recalls``.

    ``rate`` is in tokens per second; None: it is measured on a few haystacks.
    """
    from evalgate.gates.policy import load_policy
    from evalgate.gates.power import TRUE_RECALLS, expected_haystacks, power
    from evalgate.runner import make_plan, prepare, probe

    _check(policy, rate, recalls)
    rules = None if policy is None else load_policy(policy)
    bench = prepare(request)
    plan = make_plan(bench)
    plan = replace(plan, rate=rate) if rate is not None else replace(plan, speed=probe(bench, plan))
    true = sorted(set(recalls)) if recalls else TRUE_RECALLS
    chances = [] if rules is None else power(rules, true)
    drawn = {} if rules is None else expected_haystacks(rules, true)
    if json:
        derived = {"tokens": plan.tokens, "seconds": plan.seconds, "saving": plan.saving, "expected_haystacks": drawn}
        told = [c._asdict() | {"detected": c.detected, "detected_lost": c.detected_lost} for c in chances]
        console.emit(asdict(plan) | derived | {"power": told})
        return
    console.say(*_plan_lines(plan))
    for chance in chances:
        console.say(*_chance_lines(chance))
    if rules is not None and len(rules.looks) > 1:
        told_drawn = ", ".join(f"{recall:.2f}: {count:,.0f}" for recall, count in drawn.items())
        console.say(
            f"`evalgate check` draws on average, of {rules.looks[-1]} haystacks per stream, at true recall {told_drawn}"
        )


def _check(policy: str | None, rate: float | None, recalls: Sequence[float] | None) -> None:
    if rate is not None and not 0 < rate < 1e12:
        raise RefusedError(f"--rate {rate}: expected tokens per second, above 0")
    if recalls and policy is None:
        raise RefusedError("--recall asks for the chances of a policy; name it as --policy")
    for recall in recalls or ():
        if not 0 <= recall <= 1:
            raise RefusedError(f"--recall {recall}: expected a share from 0 to 1")


def _chance_lines(chance: RulePower) -> list[str]:
    passes = ", ".join(f"{recall:.2f}: {p:.3f}" for recall, p in chance.passes.items())
    blocks = ", ".join(f"{recall:.2f}: {p:.3f}" for recall, p in chance.blocks.items())
    decides = f"PASS at k >= {chance.pass_words}, BLOCK at k <= {chance.block_words}"
    lines = [
        f"{chance.cells} {chance.tier} cells, bar {chance.bar}, n {'/'.join(map(str, chance.looks))}: {decides}",
        f"  P(PASS) of one cell at true recall {passes}",
        f"  P(BLOCK) of one cell at true recall {blocks}",
    ]
    if chance.detected is not None:
        lines.append(f"  smallest drop that 4 cells in 5 block at: to a true recall of {chance.detected:.3f}")
    if chance.detected_lost is not None:
        lines.append(f"  against a baseline, PASS is kept away 4 times in 5 where {chance.detected_lost:.1%} are lost")
    return lines


def _plan_lines(plan: Plan) -> list[str]:
    session = ", ".join(f"{name} {count:,}" for name, count in plan.bytes_per_session.items())
    window = "not said" if plan.window is None else f"{plan.window:,}"
    lines = [f"{plan.suite} · {plan.model} · {plan.profile} · {plan.backend} {plan.arm_paths}"]
    lines += [
        f"  stream {s.stream}: {s.prefilled:,} tokens prefilled, at most {s.asked:,} asked: {', '.join(s.entries)}"
        for s in plan.streams
    ]
    lines += [
        f"  {plan.seeds} seeds, {plan.cells} cells, {plan.trials:,} trials, {plan.tokens:,} tokens at most",
        f"  one prompt per trial would take {plan.one_by_one_per_seed * plan.seeds:,} tokens: {plan.saving:.1f}x",
        f"  forks: {plan.forks_per_seed * plan.seeds:,}",
        f"  the longest prompt with its answer takes {plan.longest:,} tokens; the model's window: {window}",
        f"  bytes per session: {session}",
    ]
    return [*lines, *_time_lines(plan)]


def _time_lines(plan: Plan) -> list[str]:
    seconds, speed = plan.seconds, plan.speed
    if seconds is None:
        return []
    if speed is None:
        return [f"  estimate: {seconds:,.0f} s at the given {plan.rate:,.0f} tokens/s"]
    plural = "s" if speed.haystacks > 1 else ""
    measured = f"{speed.haystacks} haystack{plural} of stream {speed.stream}, {speed.tokens:,} tokens each"
    rate = f"{speed.tokens_per_second:,.0f} tokens/s"
    return [f"  estimate: {seconds:,.0f} s at {rate} (the median of {measured}, on this machine just now)"]
