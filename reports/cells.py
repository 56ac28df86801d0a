"""One row for every cell that the run asks: its counts, what decides it, and the baseline beside it.

Where a verdict speaks of a cell its numbers are shown as they are; a cell that no verdict speaks of is counted
from the trials and marked as not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from evalgate import stats
from evalgate.gates.verdict import CellVerdict, PairedResult, Status, Verdict
from evalgate.records import Cell, Trial
from evalgate.reports import charts, figures
from evalgate.reports.heatmap import step
from evalgate.reports.source import Counts, Pair, tally

DISPLAY_ALPHA = 0.05
"""Two-sided 95% intervals, for display only."""

MARKS = {
    Status.PASS: "✓",
    Status.BLOCK: "✕",
    Status.INCONCLUSIVE: "?",
    Status.ERROR: "!",
    Status.TAMPERED: "!",
}
"""A shape beside each colour, so that no meaning hangs on colour alone."""

KINDS = {
    Status.PASS: "pass",
    Status.BLOCK: "block",
    Status.INCONCLUSIVE: "open",
    Status.ERROR: "error",
    Status.TAMPERED: "error",
}
"""CSS class of a status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A cell's baseline, ready to print."""

    ratio: str
    percent: str
    lost: str
    gained: str
    limits: tuple[str, ...]
    """The losses that still pass and those that block: ``pass ≤ 6``, ``block ≥ 61``."""
    p_value: str
    kind: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """One cell, ready to print."""

    cell: Cell
    anchor: str
    length: str
    status: str
    mark: str
    kind: str
    tier: str
    ratio: str
    percent: str
    interval: str
    bar: str
    limits: tuple[str, ...]
    """The counts that pass and that block: ``pass ≥ 371``, ``block ≤ 338``."""
    step: str
    """Step of the shading scale, for reports without a verdict."""
    other: str
    """Outcomes that are neither correct nor plainly wrong: ``2 empty, 1 truncated``."""
    n_needed: str
    decided_by: str
    """Which test speaks where the cell does not pass: ``the bar``, ``the baseline`` or both."""
    against: Against | None
    chart: Markup


_PLURALS = {"error": "errors"}


class CellTable(NamedTuple):
    """Every row, and the axis that their drawings share."""

    rows: dict[Cell, CellRow]
    axis: Markup


def table(
    cells: Sequence[Cell],
    trials: Sequence[Trial],
    verdict: Verdict | None,
    paired: Mapping[Cell, Pair],
) -> CellTable:
    """Build a row for every planned cell, and for every cell that the verdict names beyond the plan."""
    named = {item.cell: item for item in verdict.cells} if verdict else {}
    # Of a run with too few seeds a verdict names cells and counts nothing.
    spoken = {cell: item for cell, item in named.items() if item.n}
    counts = tally(trials)
    every = list(dict.fromkeys([*cells, *named]))
    silent = {cell: counts.get(cell, Counts(0, 0, 0)) for cell in every if cell not in spoken}
    scale = _scale(list(spoken.values()), list(silent.values()), list(paired.values()))
    rows = {
        cell: _judged(f"cell-{at}", spoken[cell], paired.get(cell), scale)
        if cell in spoken
        else _counted(f"cell-{at}", cell, silent[cell], paired.get(cell), scale)
        for at, cell in enumerate(every)
    }
    return CellTable(rows, charts.axis(scale))


def _scale(spoken: Sequence[CellVerdict], silent: Sequence[Counts], paired: Sequence[Pair]) -> charts.Axis:
    """One axis for the whole report: it holds every interval, every bar and every baseline."""
    lows = [item.interval.lower for item in spoken if item.interval]
    lows += [stats.clopper_pearson(item.k, item.n, DISPLAY_ALPHA).lower for item in silent if item.n]
    bars = [item.bar for item in spoken]
    olds = [pair.k_baseline / pair.n for pair in paired if pair.n]
    return charts.axis_for([*lows, *bars, *olds])


def _judged(anchor: str, item: CellVerdict, pair: Pair | None, scale: charts.Axis) -> CellRow:
    against = _judged_against(item.baseline) if item.baseline else _counted_against(pair) if pair else None
    old = item.baseline or pair
    status, mark, kind = _standing(item)
    return CellRow(
        cell=item.cell,
        anchor=anchor,
        length=figures.count(item.cell.length),
        status=status,
        mark=mark,
        kind=kind,
        tier=item.tier,
        ratio=figures.ratio(item.k, item.n),
        percent=figures.percent(item.k, item.n),
        interval=figures.interval(*item.interval) if item.interval else figures.NONE,
        bar=figures.share(item.bar),
        limits=_limits(item),
        step=step(item.k, item.n),
        other=_other(item),
        n_needed=figures.count(item.n_needed),
        decided_by=_decided_by(item),
        against=against,
        chart=_chart(Counts(item.n, item.k, item.errors), item.interval, item.bar, old, scale, kind),
    )


def _counted(anchor: str, cell: Cell, counts: Counts, pair: Pair | None, scale: charts.Axis) -> CellRow:
    bounds = stats.clopper_pearson(counts.k, counts.n, DISPLAY_ALPHA) if counts.n else None
    return CellRow(
        cell=cell,
        anchor=anchor,
        length=figures.count(cell.length),
        status="not judged",
        mark="",
        kind="plain",
        tier="",
        ratio=figures.ratio(counts.k, counts.n),
        percent=figures.percent(counts.k, counts.n),
        interval=figures.interval(*bounds) if bounds else figures.NONE,
        bar=figures.NONE,
        limits=(),
        step=step(counts.k, counts.n),
        other=f"{counts.errors} errors" if counts.errors else "",
        n_needed=figures.NONE,
        decided_by="",
        against=_counted_against(pair) if pair else None,
        chart=_chart(counts, bounds, None, pair, scale, "plain"),
    )


def _standing(item: CellVerdict) -> tuple[str, str, str]:
    """Status, shape and CSS class. In a run that is not valid, only cells with unknown outcomes are at fault."""
    if item.status is Status.ERROR and not item.errors and not item.missing:
        return "not judged", "", "plain"
    return item.status.value, MARKS[item.status], KINDS[item.status]


def _limits(item: CellVerdict) -> tuple[str, ...]:
    if item.status is Status.ERROR:
        return ()
    block = f"block ≤ {item.block_max}" if item.block_max is not None else "cannot block"
    if item.tier == "guard":
        return ("guard cell", block)
    return (f"pass ≥ {item.pass_min}" if item.pass_min is not None else "cannot pass", block)


def _other(item: CellVerdict) -> str:
    named = {name: n for name, n in item.outcomes.items() if name not in {"correct", "wrong"} and n}
    if item.missing:
        named["missing"] = item.missing
    return ", ".join(f"{n} {_PLURALS.get(name, name)}" for name, n in sorted(named.items()))


def _decided_by(item: CellVerdict) -> str:
    if item.status not in {Status.BLOCK, Status.INCONCLUSIVE}:
        return ""
    by = ["the bar"] if item.absolute is item.status else []
    if item.baseline and item.baseline.status is item.status:
        by.append("the baseline")
    return " and ".join(by)


def _judged_against(paired: PairedResult) -> Against:
    return Against(
        ratio=figures.ratio(paired.k_baseline, paired.n),
        percent=figures.percent(paired.k_baseline, paired.n),
        lost=str(paired.b),
        gained=str(paired.c),
        limits=_loss_limits(paired),
        p_value=figures.probability(paired.p_value),
        kind=KINDS[paired.status],
        status=paired.status.value,
    )


def _loss_limits(paired: PairedResult) -> tuple[str, ...]:
    passes = f"pass ≤ {paired.breaks_max}" if paired.breaks_max is not None else "cannot pass"
    blocks = (f"block ≥ {paired.b_min}",) if paired.b_min is not None else ()
    unknown = (f"counted {paired.breaks} with unknown",) if paired.breaks != paired.b else ()
    return (passes, *blocks, *unknown)


def _counted_against(pair: Pair) -> Against:
    return Against(
        ratio=figures.ratio(pair.k_baseline, pair.n),
        percent=figures.percent(pair.k_baseline, pair.n),
        lost=str(pair.lost),
        gained=str(pair.gained),
        limits=(),
        p_value=figures.NONE,
        kind="plain",
        status="not judged",
    )


def _chart(
    counts: Counts,
    bounds: stats.Interval | None,
    bar: float | None,
    old: PairedResult | Pair | None,
    scale: charts.Axis,
    kind: str,
) -> Markup:
    if bounds is None:
        return Markup("")
    mark = charts.Mark(
        share=counts.k / counts.n,
        lower=bounds.lower,
        upper=bounds.upper,
        bar=bar,
        baseline=old.k_baseline / old.n if old and old.n else None,
        kind=kind,
    )
    return charts.interval(mark, scale)
