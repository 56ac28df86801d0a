"""What differs between two policies, in words; a loosening is whatever lets more through or shows less."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence

from evalgate.gates.cell_names import name_cells
from evalgate.gates.policy import CellRule, Policy
from evalgate.records import Cell
from evalgate.release import Change, Direction

# From the loosest to the strictest.
KINDS = ("smoke", "release")
BASELINES = ("none", "optional", "required")
TIERS = ("guard", "primary")
ON_INCONCLUSIVE = ("warn", "hold", "block")
ANSWERS = ("keep", "redact", "drop")
FALSE_TO_TRUE = (False, True)


def policy_changes(old: Policy, new: Policy) -> list[Change]:
    """List every difference in what two policies demand, loosenings first."""
    found = [*_plan(old, new), *_alphas(old, new), *_cells(old, new), *_validity(old, new), *_privacy(old, new)]
    order: list[Direction] = ["weaker", "stronger", "other"]
    return sorted(found, key=lambda change: order.index(change.direction))


def _plan(old: Policy, new: Policy) -> Iterator[Change]:
    yield from _ranked("kind", old.kind, new.kind, KINDS)
    if old.suite != new.suite:
        # Nothing here shows that the other suite is no easier, so it counts as if it were.
        yield Change("weaker", f"suite: {old.suite} -> {new.suite}, which may ask less; compare them with `suite diff`")
    yield from _number("seeds at the first look", old.looks[0], new.looks[0], looser="lower")
    yield from _number("seeds at the last look", old.looks[-1], new.looks[-1], looser="lower")
    yield from _number("number of looks", len(old.looks), len(new.looks), looser="lower")
    if old.looks != new.looks and len(old.looks) == len(new.looks):
        yield Change("other", f"looks: {old.looks} -> {new.looks}")
    yield from _number("n_guard", old.n_guard, new.n_guard, looser="lower")
    yield from _number("churn_margin", old.churn_margin, new.churn_margin, looser="higher")
    yield from _ranked("on_inconclusive", old.on_inconclusive, new.on_inconclusive, ON_INCONCLUSIVE)
    yield from _ranked("baseline.use", old.baseline.use, new.baseline.use, BASELINES)
    if old.stop_on_block != new.stop_on_block:
        yield Change("other", f"stop_on_block: {_said(old.stop_on_block)} -> {_said(new.stop_on_block)}")


def _alphas(old: Policy, new: Policy) -> Iterator[Change]:
    yield from _number("alpha.pass", old.alpha.pass_, new.alpha.pass_, looser="higher")
    for part in ("absolute", "paired", "guard"):
        before, after = getattr(old.alpha.block, part), getattr(new.alpha.block, part)
        # A smaller chance of a false BLOCK is a smaller chance of a true one too.
        yield from _number(f"alpha.block.{part}", before, after, looser="lower")


def _cells(old: Policy, new: Policy) -> Iterator[Change]:
    before, after = old.rules, new.rules
    gone, come = [cell for cell in before if cell not in after], [cell for cell in after if cell not in before]
    if gone:
        yield Change(
            "weaker", f"no longer judged: {name_cells(gone, list(before))} ({len(gone)} of {len(before)} cells)"
        )
    if come:
        yield Change("stronger", f"judged now: {name_cells(come, list(after))} ({len(come)} more cells)")
    both = [cell for cell in before if cell in after]

    def grouped(value_of: Callable[[Policy, CellRule], Hashable]) -> Iterator[tuple[str, Hashable, Hashable]]:
        pairs: dict[tuple[Hashable, Hashable], list[Cell]] = {}
        for cell in both:
            pair = value_of(old, before[cell]), value_of(new, after[cell])
            pairs.setdefault(pair, []).append(cell)
        for (was, now), cells in pairs.items():
            if was != now:
                yield name_cells(cells, list(before)), was, now

    for where, was, now in grouped(lambda _, rule: rule.min):
        yield from _number(f"bar of {where}", was, now, looser="lower")
    for where, was, now in grouped(lambda _, rule: rule.tier):
        yield from _ranked(f"tier of {where}", was, now, TIERS)
    for where, was, now in grouped(lambda policy, rule: policy.margin(rule)):
        yield from _number(f"break margin of {where}", was, now, looser="higher")


def _validity(old: Policy, new: Policy) -> Iterator[Change]:
    before, after = old.validity, new.validity
    for field in ("max_error_share", "max_truncated_share", "max_empty_share"):
        yield from _number(f"validity.{field}", getattr(before, field), getattr(after, field), looser="higher")
    yield from _number("validity.floor", before.floor, after.floor, looser="lower", none="loosest")
    yield from _ranked(
        "validity.require_effective_profile",
        before.require_effective_profile,
        after.require_effective_profile,
        FALSE_TO_TRUE,
    )


def _privacy(old: Policy, new: Policy) -> Iterator[Change]:
    before, after = old.privacy, new.privacy
    yield from _ranked("privacy.answers", before.answers, after.answers, ANSWERS)
    yield from _number("privacy.keep_days", before.keep_days, after.keep_days, looser="higher", none="loosest")
    for pattern in before.redact:
        if pattern not in after.redact:
            yield Change("weaker", f"privacy.redact: {pattern!r} is no longer removed")
    for pattern in after.redact:
        if pattern not in before.redact:
            yield Change("stronger", f"privacy.redact: {pattern!r} is removed now")


def _number(field: str, old: object, new: object, *, looser: str, none: str = "") -> Iterator[Change]:
    """A number that moved; with ``none="loosest"``, null is looser than any number."""
    if old == new:
        return
    if old is None or new is None:
        weaker = (new is None) is (none == "loosest")
    else:
        weaker = (float(str(new)) < float(str(old))) is (looser == "lower")
    yield Change("weaker" if weaker else "stronger", f"{field}: {_said(old)} -> {_said(new)}")


def _ranked(field: str, old: object, new: object, order: Sequence[object]) -> Iterator[Change]:
    """A word that moved along ``order``, loosest first."""
    if old != new:
        weaker = order.index(new) < order.index(old)
        yield Change("weaker" if weaker else "stronger", f"{field}: {_said(old)} -> {_said(new)}")


def _said(value: object) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
