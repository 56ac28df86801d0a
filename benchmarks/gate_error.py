"""How often the gate is wrong, and what being right costs: ``python benchmarks/gate_error.py [--gates N] [--out FILE]``

Monte Carlo over whole gates. Every boundary is the project's own, taken from its plan of a policy; the answers are
drawn, with a known recall in every cell and haystacks that cells share: on a part of them (``together``) all cells are
right or wrong together. Targets: P(PASS) with one cell exactly at its bar and P(BLOCK) with all cells at their bars
and no regression are at most .05. Beside it stand three gates that decide by other rules at an equal number of seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from other_gates import Words, other_gates

from evalgate.gates.floor import ALPHA as FLOOR_ALPHA
from evalgate.gates.plan import CellPlan, plan
from evalgate.gates.policy import Policy, load_policy
from evalgate.stats import block_max, exact, mcnemar_min

POLICY = "serving-default@1.1.0"
FIXED = 400
"""Seeds of the gates that look once."""
SHAPES: Mapping[int, Mapping[str, list[Any]]] = {
    3: {"task": ["single"], "length": [1024]},
    12: {"task": ["single"], "length": [1024, 2048, 4096, 8192]},
    36: {"task": ["single", "multikey@8", "overwrite@3"], "length": [1024, 2048, 4096, 8192]},
}
"""Cells -> tasks and lengths, in three bands each."""
RECALLS = (0.85, 0.88, 0.92, 0.95, 0.97, 0.99)
TOGETHER = 0.1
LIMIT = 0.05
CHUNK = 2000
"""Gates that are drawn at once."""
OPEN, PASSED, BLOCKED, CLOSED = range(4)

Counts = npt.NDArray[np.int64]
Draw = Callable[[npt.NDArray[np.int64], int, int], tuple[Counts, Counts, Counts]]
"""(gates (G,), first seed, end) -> right, lost and gained answers, (G, cells) each."""


class Outcome(NamedTuple):
    """What became of each gate, (gates,) each."""

    passed: npt.NDArray[np.bool_]
    blocked: npt.NDArray[np.bool_]
    error: npt.NDArray[np.bool_]
    haystacks: Counts


@dataclass(frozen=True)
class World:
    """True answers: recall and share of breaks of each cell, (cells,), and how far cells fail together."""

    recall: npt.NDArray[np.float64]
    breaks: npt.NDArray[np.float64]
    """P(baseline right, candidate wrong), as often as the reverse."""
    together: float

    def draw(self, rng: np.random.Generator) -> Draw:
        """Counts of answers for any number of gates: every trial is a number in [0, 1), cut where its word changes."""
        recall, breaks = self.recall, self.breaks
        cuts = np.unique(np.concatenate([[0.0, 1.0], breaks, recall, recall + breaks]))
        alone = np.stack([breaks, recall - breaks, breaks, 1 - recall - breaks], axis=1).clip(0)
        at_gain, at_right, at_lost = (np.searchsorted(cuts, edges) for edges in (breaks, recall, recall + breaks))

        def drawn(gates: npt.NDArray[np.int64], first: int, end: int) -> tuple[Counts, Counts, Counts]:
            shared = rng.binomial(end - first, self.together, len(gates))
            below = rng.multinomial(shared, np.diff(cuts)).cumsum(axis=1)
            below = np.concatenate([np.zeros((len(gates), 1), np.int64), below], axis=1)
            own = rng.multinomial((end - first - shared)[:, None], alone / alone.sum(axis=1, keepdims=True))
            right = below[:, at_right] + own[..., 0] + own[..., 1]
            lost = below[:, at_lost] - below[:, at_right] + own[..., 2]
            return right, lost, below[:, at_gain] + own[..., 0]

        return drawn


def shaped(cells: int, looks: list[int] | None = None, guards: int = 0) -> Policy:
    """The serving policy with another number of primary cells, other looks, and guard cells of another task."""
    body = load_policy(POLICY).model_dump(mode="json", by_alias=True)
    rule = body["cells"][0]
    rules = [rule | SHAPES[cells]]
    if guards:
        rules.append(rule | {"task": ["guarded"], "length": list(range(1, guards // 3 + 1)), "tier": "guard"})
    return Policy.model_validate(body | {"cells": rules, "looks": looks or body["looks"]})


def gate(policy: Policy, draw: Draw, gates: int, *, paired: bool, floor: bool) -> Outcome:
    """Judge ``gates`` runs look by look as `evalgate check` draws them, all at once."""
    plans = plan(policy)
    primary = np.array([planned.primary for planned in plans])
    floor_cells = np.array([planned.cell.task == "single" and planned.cell.length == 1024 for planned in plans])
    shape = (gates, len(plans))
    right, lost, gained = (np.zeros(shape, np.int64) for _ in range(3))
    bar, pair = np.full(shape, OPEN), np.full(shape, OPEN if paired else PASSED)
    pair[:, ~primary] = PASSED
    error, alive, used = np.zeros(gates, bool), np.ones(gates, bool), np.zeros(gates, np.int64)
    first = 0
    for n in sorted({n for planned in plans for n in planned.looks}):
        at = np.flatnonzero(alive)
        for total, more in zip((right, lost, gained), draw(at, first, n), strict=True):
            total[at] += more
        first = n
        going = ((bar == OPEN) | (pair == OPEN)) & (bar != BLOCKED) & (pair != BLOCKED) & alive[:, None]
        for cell, planned in enumerate(plans):
            if n in planned.looks:
                rows = np.flatnonzero(going[:, cell])
                _test(
                    planned,
                    n,
                    right[rows, cell],
                    lost[rows, cell],
                    gained[rows, cell],
                    rows,
                    bar[:, cell],
                    pair[:, cell],
                )
        if n not in policy.looks:
            continue
        used[alive] = n
        if floor:
            most = block_max(n, exact(policy.validity.floor or 0), FLOOR_ALPHA / int(floor_cells.sum()))
            error |= (going & floor_cells & (right <= (-1 if most is None else most))).any(axis=1)
        blocked = (bar == BLOCKED) | (pair == BLOCKED)
        still = (((bar == OPEN) | (pair == OPEN)) & ~blocked & primary).any(axis=1)
        alive &= still & ~error & ~(blocked.any(axis=1) & policy.stop_on_block)
    blocked_any = ((bar == BLOCKED) | (pair == BLOCKED)).any(axis=1)
    passed = ((bar == PASSED) & (pair == PASSED))[:, primary].all(axis=1)
    return Outcome(passed & ~blocked_any & ~error, blocked_any & ~error, error, used)


def _test(
    planned: CellPlan, n: int, right: Counts, lost: Counts, gained: Counts, rows: Counts, bar: Counts, pair: Counts
) -> None:
    """Apply one cell's tests at a look to the gates ``rows``; a test that is decided stays as it is."""
    at = planned.at(n)
    new = np.full(len(rows), OPEN if planned.primary else CLOSED)
    if at.pass_min is not None:
        new[right >= at.pass_min] = PASSED
    if at.block_max is not None:
        new[right <= at.block_max] = BLOCKED
    bar[rows] = np.where(bar[rows] == OPEN, new, bar[rows])
    flips = lost + gained
    least = [mcnemar_min(m, at.paired_alpha) for m in range(int(flips.max(initial=0)) + 1)]
    bound = np.array([m + 1 if b is None else b for m, b in enumerate(least)])
    new = np.where(lost >= bound[flips], BLOCKED, OPEN)
    if at.breaks_max is not None and planned.may_pass:
        new[(new == OPEN) & (lost <= at.breaks_max)] = PASSED
    pair[rows] = np.where(pair[rows] == OPEN, new, pair[rows])


def run(
    policy: Policy, world: World, gates: int, rng: np.random.Generator, *, paired: bool = False, floor: bool = False
) -> dict[str, float]:
    """Shares of the words that ``gates`` gates say, and what they cost."""
    parts = [
        gate(policy, world.draw(rng), min(CHUNK, gates - start), paired=paired, floor=floor)
        for start in range(0, gates, CHUNK)
    ]
    passed, blocked, error, haystacks = (np.concatenate(field) for field in zip(*parts, strict=True))
    return {
        "pass": share(passed),
        "block": share(blocked),
        "error": share(error),
        "haystacks": round(float(haystacks.mean()), 1),
    }


def fixed(cells: int, world: World, gates: int, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Our gate at one look of ``FIXED`` seeds and the others, all on the same answers."""
    policy, draw = shaped(cells, [FIXED]), world.draw(rng)
    said: dict[str, list[Words]] = {}
    for start in range(0, gates, CHUNK):
        answers = draw(np.arange(min(CHUNK, gates - start)), 0, FIXED)
        ours = gate(policy, lambda *_, known=answers: known, len(answers[0]), paired=False, floor=False)
        words = {"exact": Words(ours.passed, ours.blocked), **other_gates(answers[0], FIXED, policy.cells[0].min)}
        for name, word in words.items():
            said.setdefault(name, []).append(word)
    return {
        name: {
            "pass": share(np.concatenate([part.passed for part in parts])),
            "block": share(np.concatenate([part.blocked for part in parts])),
        }
        for name, parts in said.items()
    }


def share(said: npt.NDArray[np.bool_]) -> float:
    """Part of the gates that said it."""
    return round(float(said.mean()), 5)


def level(cells: int, recall: float, together: float, *, others: float | None = None) -> World:
    """All cells at ``recall``; or the last alone, with the others at ``others``."""
    values = np.full(cells, recall if others is None else others)
    values[-1] = recall
    return World(values, np.zeros(cells), together)


def errors(gates: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """The two error rates that are promised, with each part of the budget in play."""
    rows: list[dict[str, Any]] = []
    for cells in SHAPES:
        bare, whole = shaped(cells), shaped(cells, guards=12)
        for together in (0.0, 0.3):
            last = np.arange(cells) == cells - 1
            breaking = World(np.full(cells, 0.97), np.where(last, 0.03, 0.0005), together)
            churning = World(np.full(cells + 12, 0.9), np.full(cells + 12, 0.02), together)
            found = {
                "one cell at the bar": run(bare, level(cells, 0.9, together, others=0.995), gates, rng),
                "one cell at the break margin": run(bare, breaking, gates, rng, paired=True),
                "all at the bar": run(bare, level(cells, 0.9, together), gates, rng),
                "all at the bar, 12 guards, baseline": run(whole, churning, gates, rng, paired=True),
                "the same with the floor": run(whole, churning, gates, rng, paired=True, floor=True),
            }
            for what, rates in found.items():
                wrong = "pass" if what.startswith("one") else "block"
                rows.append({"cells": cells, "together": together, "what": what, "wrong": wrong, **rates})
    return rows


def powers(gates: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """What becomes of models of known recall, by this gate and by the others."""
    rows: list[dict[str, Any]] = []
    for cells in SHAPES:
        worlds = {f"all {recall}": level(cells, recall, TOGETHER) for recall in RECALLS}
        worlds |= {f"one {recall}, others .995": level(cells, recall, TOGETHER, others=0.995) for recall in (0.88, 0.9)}
        for recall, world in worlds.items():
            looks = run(shaped(cells), world, gates, rng)
            rows.append({"cells": cells, "recall": recall, "looks": looks, "fixed": fixed(cells, world, gates, rng)})
    return rows


def main() -> int:
    """Simulate, print and write the result; 1 where an error rate is above its limit."""
    from workbench import write_result

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("gate_error.json"))
    arguments = parser.parse_args()
    rng = np.random.default_rng(5)
    wrong = errors(arguments.gates, rng)
    for row in wrong:
        print(
            f"{row['cells']:2} cells, together {row['together']}, {row['what']}: {row['wrong']} {row[row['wrong']]:.4f}"
        )
    right = powers(arguments.gates, rng)
    for row in right:
        one = {name: word["pass"] for name, word in row["fixed"].items()}
        print(f"{row['cells']:2} cells, {row['recall']}: {row['looks']}; P(PASS) at {FIXED} seeds: {one}")
    met = all(row[row["wrong"]] <= LIMIT for row in wrong)
    about = {"gates": arguments.gates, "policy": POLICY, "fixed_seeds": FIXED, "together": TOGETHER}
    return write_result(arguments.out, 1, met=met, **about, errors=wrong, powers=right)


if __name__ == "__main__":
    raise SystemExit(main())
