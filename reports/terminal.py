"""The summary that a terminal shows after a gate: counts per band, the verdict, and what to do next."""

from __future__ import annotations

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from evalgate.gates.verdict import CellVerdict, Status, Verdict
from evalgate.records import Cell
from evalgate.reports import figures
from evalgate.reports.cells import MARKS
from evalgate.reports.excerpt import visible
from evalgate.reports.headline import next_step
from evalgate.reports.source import Group, groups

STYLES = {
    Status.PASS: "blue",
    Status.BLOCK: "bold red",
    Status.INCONCLUSIVE: "yellow",
    Status.ERROR: "bold magenta",
    Status.TAMPERED: "bold magenta",
}
"""A colour beside each mark; the mark alone says as much."""


def summary(verdict: Verdict) -> RenderableType:
    """A table of k/n for each band of every task and length, the verdict with its reason, and the next step.

    Where nothing was counted there is no table. Whatever the verdict quotes is printed as plain characters: neither
    markup nor escape sequences act.
    """
    counted = [_table(verdict)] if any(item.n for item in verdict.cells) else []
    return Lines(*counted, *_reach(verdict), _line(verdict), *_notices(verdict), Text(f"Next: {next_step(verdict)}"))


def _table(verdict: Verdict) -> Table:
    items = {item.cell: item for item in verdict.cells}
    bands = list(dict.fromkeys(cell.band for cell in items))
    compared = any(item.baseline for item in verdict.cells)
    title = "right answers by band" + (", and those lost (−) and gained (+) against the baseline" if compared else "")
    table = Table(title=title, title_justify="left", title_style="italic")
    table.add_column("task", no_wrap=True)
    table.add_column("length", justify="right", no_wrap=True)
    for band in bands:
        table.add_column(Text(visible(band)), no_wrap=True)
    for group in groups(items):
        _add_rows(table, group, bands, items)
    return table


def _add_rows(table: Table, group: Group, bands: list[str], items: dict[Cell, CellVerdict]) -> None:
    for at, length in enumerate(group.lengths):
        found = (items.get(Cell(group.task, length, band, group.arm)) for band in bands)
        table.add_row(
            Text(visible(group.title) if at == 0 else ""),
            figures.count(length),
            *(_cell(item) for item in found),
            end_section=at == len(group.lengths) - 1,
        )


def _cell(item: CellVerdict | None) -> Text:
    if item is None:
        return Text(figures.NONE, style="dim")
    text = Text(f"{MARKS[item.status]} {figures.ratio(item.k, item.n)}", style=STYLES[item.status])
    if item.baseline is not None and (item.baseline.b or item.baseline.c):
        text.append(f" −{item.baseline.b} +{item.baseline.c}", style="not bold dim")
    return text


def _reach(verdict: Verdict) -> list[Text]:
    """``effective context: single 4,096 tokens, ...``"""
    told = ", ".join(f"{visible(one.title)} {one}" for one in verdict.effective_context)
    return [Text(f"effective context: {told}")] if told else []


def _line(verdict: Verdict) -> Text:
    """``BLOCK``, then the reason without the word."""
    word = verdict.status.value
    reason = visible(verdict.reason.removeprefix(f"{word}: "))
    return Text.assemble((f"{MARKS[verdict.status]} {word}", STYLES[verdict.status]), f" {reason}")


def _notices(verdict: Verdict) -> list[Text]:
    return [Text.assemble((f"{notice.code}: ", "yellow"), visible(notice.detail)) for notice in verdict.warnings]
