"""Words for verdicts: one clause per cell, and the sentence that names the cells that decide."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from evalgate.gates.cell_names import name_cells
from evalgate.gates.course import Course
from evalgate.gates.finding import Finding
from evalgate.gates.run_record import Tally
from evalgate.gates.verdict import CellVerdict, PairedResult, Status
from evalgate.stats import exact


def tell_bar(bar: float) -> str:
    """Write a bar with two decimals, or with all it has: rounding must not make 0.899 look like 0.90."""
    return f"{bar:.2f}" if exact(bar) * 100 == int(exact(bar) * 100) else str(bar)


def tell_cell(course: Course) -> str:
    """Say what a cell recalled and the integers it was held against."""
    absolute, pair = course.absolute, course.pair
    blocked = [
        *([_below_bar(course)] if absolute.status is Status.BLOCK else []),
        *([_regressed(pair)] if pair is not None and pair.status is Status.BLOCK else []),
    ]
    return "; ".join([_recalled(absolute.tally), *(blocked or _limits(course))])


def _recalled(tally: Tally) -> str:
    unknown = []
    if tally.errors:
        unknown.append(f"{tally.errors} error{'s' if tally.errors > 1 else ''}")
    if tally.missing:
        unknown.append(f"{tally.missing} missing")
    return f"recalled {tally.k}/{tally.n}" + (f" ({', '.join(unknown)})" if unknown else "")


def _below_bar(course: Course) -> str:
    return f"at most {course.absolute.block_max} blocks at bar {tell_bar(course.planned.rule.min)}"


def _regressed(pair: PairedResult) -> str:
    return (
        f"broke {pair.b} of the {pair.k_baseline} answers that the baseline has right and gained {pair.c}, "
        f"from {pair.b_min} of {pair.b + pair.c} flips blocks (p = {pair.p_value:.2g})"
    )


def _limits(course: Course) -> list[str]:
    planned, absolute, pair = course
    bar = tell_bar(planned.rule.min)
    blocks = "no count blocks" if absolute.block_max is None else f"at most {absolute.block_max} blocks"
    if not planned.may_pass:
        return [f"only blocks: {blocks} at bar {bar}"]
    if absolute.status is Status.PASS:
        words = [f"PASS needs {absolute.pass_min} at bar {bar}"]
    elif absolute.pass_min is None:
        words = [f"{absolute.n} seeds cannot show bar {bar}"]
    else:
        words = [f"PASS needs {absolute.pass_min}, {blocks}, at bar {bar}"]
    if pair is not None and pair.breaks_max is None:
        words.append(f"{pair.n} seeds cannot show that at most {pair.margin:.2g} of the answers break")
    elif pair is not None:
        of = "" if pair.n == absolute.n else f" of {pair.n}"
        words.append(f"broke {pair.breaks}{of}, at most {pair.breaks_max} may break")
    return words


def tell_error(failed: Sequence[Finding]) -> str:
    """Say the first of the failed checks, and how many more there are."""
    more = f" ({len(failed) - 1} more checks failed)" if len(failed) > 1 else ""
    return f"ERROR: {failed[0].check.detail}{more}"


def tell_verdict(status: Status, cells: Sequence[CellVerdict], n: int, *, smoke: bool) -> str:
    """Say which cells decide and how the worst of them stands."""
    primary = [cell for cell in cells if cell.tier == "primary"]
    if status is Status.BLOCK:
        blocked = [cell for cell in cells if cell.status is Status.BLOCK]
        return _deciding("BLOCK", "", blocked, cells)
    if status is Status.PASS:
        closest = min(primary, key=_headroom)
        guards = " and no guard cell blocks" if len(primary) < len(cells) else ""
        count = f"all {len(primary)} cells pass" if len(primary) > 1 else "the cell passes"
        return f"PASS: {count} at {n} seeds{guards}; closest: {closest.cell} {closest.reason}"
    if smoke:
        return f"INCONCLUSIVE: no regression seen in {len(cells)} cells at {n} seeds; a smoke policy never passes"
    undecided = [cell for cell in primary if cell.status is not Status.PASS]
    return _deciding("INCONCLUSIVE", " undecided", undecided, cells)


def _deciding(word: str, what: str, deciding: Sequence[CellVerdict], cells: Sequence[CellVerdict]) -> str:
    worst = min(deciding, key=_rank)
    more = f"; about {worst.n_needed} seeds would pass at this share" if worst.n_needed is not None else ""
    if len(deciding) == 1:
        return f"{word}: {worst.cell} {worst.reason}{more}"
    names = name_cells([cell.cell for cell in deciding], [cell.cell for cell in cells])
    return f"{word}: {names}{what} ({len(deciding)} of {len(cells)} cells); worst: {worst.cell} {worst.reason}{more}"


def _rank(cell: CellVerdict) -> tuple[Fraction, int]:
    """Lowest share first, then most breaks."""
    return Fraction(cell.k, cell.n), -(cell.baseline.b if cell.baseline else 0)


def _headroom(cell: CellVerdict) -> int:
    """Answers that could have been wrong, or broken, before the cell would not have passed."""
    bar = cell.k - (cell.pass_min or 0)
    pair = cell.baseline
    return bar if pair is None or pair.breaks_max is None else min(bar, pair.breaks_max - pair.breaks)
