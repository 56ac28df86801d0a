"""What the page of a sweep shows: recall against bytes, rate by rate, and what may be deployed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from markupsafe import Markup

from evalgate.gates.sweep import Rate, Sweep
from evalgate.gates.verdict import CellVerdict
from evalgate.reports import figures
from evalgate.reports.cells import KINDS, MARKS
from evalgate.reports.charts import Axis, Mark, axis, axis_for, interval
from evalgate.reports.curves import Line, Scale, chart
from evalgate.reports.headline import Notice

SCALE = Scale(0.0, 1.0, ((0.0, "0%"), (0.5, "50%"), (1.0, "100%")))


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRow:
    """One profile of the sweep, ready to print."""

    profile: str
    size: str
    status: str
    mark: str
    kind: str
    reason: str
    reach: str
    bands: tuple[tuple[str, str, str, Markup], ...]
    """For each band its weakest cell: the band, k/n, the interval in words, and drawn."""
    report: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """The page of one sweep."""

    title: str
    sentence: str
    kind: str
    subject: str
    attempts: str
    axis: Markup
    curve: Markup | None
    """None where fewer than two rates say how many bytes they take."""
    rows: tuple[RateRow, ...]
    untried: str
    notices: tuple[Notice, ...]


def sweep_view(found: Sweep) -> SweepView:
    """Build the page's content from the verdicts alone."""
    first = found.rates[0].verdict
    weakest = [cell for rate in found.rates for cell in _weakest(rate).values()]
    scale = axis_for([cell.interval.lower for cell in weakest if cell.interval is not None])
    return SweepView(
        title=f"Sweep of {first.run.model}",
        sentence=f"Deploy {found.deploy}." if found.deploy else "Deploy none of them.",
        kind="pass" if found.deploy else "block",
        subject=f"{first.run.suite.name}@{first.run.suite.version} under {first.policy.name}@{first.policy.version}, "
        f"seed set {first.run.seed_set}",
        attempts=attempts(found),
        axis=axis(scale),
        curve=_curve(found.rates),
        rows=tuple(_row(rate, scale) for rate in found.rates),
        untried=", ".join(found.untried),
        notices=tuple(Notice(code=notice.code, detail=notice.detail) for notice in found.notices),
    )


def attempts(found: Sweep) -> str:
    """How many rates were judged on the seeds of this sweep, and what that asks for before a release."""
    count, name = len(found.rates), found.rates[0].verdict.run.seed_set
    return (
        f"{count} attempt{'s' if count > 1 else ''} on seed set {name}; confirm a release on seeds that none of them "
        "saw, with `evalgate check --seed-set`"
    )


def _weakest(rate: Rate) -> dict[str, CellVerdict]:
    """Band -> its judged cell with the lowest share of right answers."""
    found: dict[str, CellVerdict] = {}
    for cell in rate.verdict.cells:
        old = found.get(cell.cell.band)
        if cell.n and cell.interval and (old is None or Fraction(cell.k, cell.n) < Fraction(old.k, old.n)):
            found[cell.cell.band] = cell
    return found


def _row(rate: Rate, scale: Axis) -> RateRow:
    verdict = rate.verdict
    reach = ", ".join(f"{one.title} {one}" for one in verdict.effective_context)
    return RateRow(
        profile=rate.profile,
        size=figures.count(rate.bytes_per_session),
        status=verdict.status.value,
        mark=MARKS[verdict.status],
        kind=KINDS[verdict.status],
        reason=verdict.reason,
        reach=reach or figures.NONE,
        bands=tuple(_band(cell, scale) for cell in _weakest(rate).values()),
        report=f"{rate.profile}/report.html",
    )


def _band(cell: CellVerdict, scale: Axis) -> tuple[str, str, str, Markup]:
    assert cell.interval is not None, "only cells with an interval are shown"
    low, high = cell.interval
    drawn = interval(Mark(cell.k / cell.n, low, high, cell.bar, None, KINDS[cell.status]), scale)
    words = f"{cell.cell.task} · {figures.count(cell.cell.length)}: {figures.ratio(cell.k, cell.n)}"
    return cell.cell.band, words, figures.interval(low, high), drawn


def _curve(rates: Sequence[Rate]) -> Markup | None:
    sized = [(rate.bytes_per_session, _weakest(rate)) for rate in rates if rate.bytes_per_session is not None]
    if len(sized) < 2:
        return None
    bands = dict.fromkeys(band for _, cells in sized for band in cells)
    lines = [
        Line([cells[band].k / cells[band].n if band in cells else None for _, cells in sized], band, "layer")
        for band in bands
    ]
    sizes = [size for size, _ in sized]
    return chart(sizes, lines, SCALE, end=max(sizes))
