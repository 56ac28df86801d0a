"""The floor: whether the set-up can retrieve at all, before anything is said about length or compression."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

from evalgate.errors import MismatchError
from evalgate.gates.finding import Finding, failed, not_applicable, ok
from evalgate.gates.policy import Policy
from evalgate.gates.profile import UNCOMPRESSED
from evalgate.gates.run_record import RunRecord
from evalgate.gates.verdict import Floor, FloorBand, Reason
from evalgate.records import Cell
from evalgate.stats import block_max, exact

FAMILY = "single"
ALPHA = Fraction(1, 100)
"""Chance of calling a set-up broken that is at the floor, over all bands."""


def judge_floor(run: RunRecord, baseline: RunRecord | None, policy: Policy, counted: Mapping[Cell, int]) -> Floor:
    """Judge ``single`` at the shortest length, on the run that is not compressed.

    A cell that the policy judges counts the seeds that it was judged by, another one those of the first look.

    That is the baseline; without one this run, if its profile is ``full``; else the floor is not judged.
    Raises MismatchError: the policy sets a floor for a suite that has no ``single``.
    """
    bar = policy.validity.floor
    if bar is None:
        return _unjudged("off", "the policy sets no floor")
    cells = _floor_cells(run.planned)
    if not cells:
        raise MismatchError(
            f"policy {policy.ref} sets a floor, and suite {policy.suite} has no task {FAMILY!r} to judge it on; "
            "set validity.floor: null"
        )
    judged = baseline
    if judged is None and run.manifest.profile.name == UNCOMPRESSED:
        judged = run
    if judged is None:
        return _unjudged("not-judged", f"no baseline, and profile {run.manifest.profile.name} is not {UNCOMPRESSED}")
    if any(cell not in judged for cell in cells):
        return _unjudged("not-judged", f"run {judged.manifest.run_id} did not ask {cells[0].task} at {cells[0].length}")
    seeds = [counted.get(cell, policy.looks[0]) for cell in cells]
    if block_max(min(seeds), exact(bar), ALPHA / len(cells)) is None:
        return _unjudged("not-judged", f"{min(seeds)} seeds are too few to show a broken set-up")
    bands = [_judge_band(judged, cell, n, bar, len(cells)) for cell, n in zip(cells, seeds, strict=True)]
    broken = [band for band in bands if band.broken]
    shown = "; ".join(f"{band.band} {band.k}/{band.n}" for band in broken or bands)
    return Floor(
        status="broken" if broken else "ok",
        judged_on="run" if judged is run else "baseline",
        task=cells[0].task,
        length=cells[0].length,
        bar=bar,
        bands=bands,
        detail=f"{cells[0].task} at length {cells[0].length}: {shown}",
    )


def floor_finding(floor: Floor) -> Finding:
    """Say the floor as a check of validity."""
    if floor.status == "broken":
        limit = next(band.k_max for band in floor.bands if band.broken)
        return failed(
            "floor",
            Reason.FLOOR_BROKEN,
            f"the set-up is broken: on the {floor.judged_on}, {floor.detail} (at most {limit} is broken at floor "
            f"{floor.bar}), so nothing about length can be said; check the chat template and the checkpoint",
        )
    if floor.status == "ok":
        return ok("floor", f"{floor.detail}, on the {floor.judged_on}")
    return not_applicable("floor", floor.detail)


def _floor_cells(planned: list[Cell]) -> list[Cell]:
    cells = [cell for cell in planned if cell.task.partition("@")[0] == FAMILY and cell.arm == "default"]
    shortest = min((cell.length for cell in cells), default=None)
    return [cell for cell in cells if cell.length == shortest]


def _judge_band(run: RunRecord, cell: Cell, n: int, bar: float, bands: int) -> FloorBand:
    tally = run.tally(cell, n)
    k_max = block_max(n, exact(bar), ALPHA / bands)
    return FloorBand(
        band=cell.band,
        n=n,
        k=tally.k,
        errors=tally.unknown,
        k_max=k_max,
        broken=k_max is not None and tally.k + tally.unknown <= k_max,
    )


def _unjudged(status: Literal["not-judged", "off"], detail: str) -> Floor:
    return Floor(status=status, judged_on=None, task=None, length=None, bar=None, detail=detail)
