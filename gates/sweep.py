"""The sweep: compression rates in a fixed sequence, mild to aggressive, and the most aggressive that is still safe.

Each rate is judged by the policy's whole rule at full alpha and the first that does not pass ends it. So a rate that
is not safe is only ever deployed if the gate passes the *first* such rate, whose chance is at most alpha: testing
several rates costs nothing (fixed sequence; Angelopoulos et al., Learn then Test).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from evalgate.errors import ExitCode
from evalgate.gates.verdict import CellVerdict, Notice, Status, Verdict


class Rate(NamedTuple):
    """One profile that was tried."""

    verdict: Verdict
    bytes_per_session: int | None
    """Measured at the suite's longest length; None where the backend does not say."""

    @property
    def profile(self) -> str:
        """``name@version``"""
        return f"{self.verdict.run.profile.name}@{self.verdict.run.profile.version}"

    @property
    def weakest(self) -> CellVerdict | None:
        """The judged cell with the lowest share of right answers; None where nothing was judged."""
        judged = [cell for cell in self.verdict.cells if cell.n]
        return min(judged, key=lambda cell: Fraction(cell.k, cell.n), default=None)


class Sweep(NamedTuple):
    """What a sweep came to."""

    rates: list[Rate]
    untried: list[str]
    """Profiles after the first that did not pass."""
    deploy: str | None
    """The last profile that passed; None: not even the mildest."""
    exit_code: ExitCode
    """PASS where there is something to deploy, else what the mildest rate's verdict means."""
    notices: list[Notice]


def goes_on(rate: Rate) -> bool:
    """Whether the next rate may be tried: only after a PASS."""
    return rate.verdict.status is Status.PASS


def conclude(rates: Sequence[Rate], untried: Sequence[str]) -> Sweep:
    """What to deploy, after ``rates`` (at least one) in the order in which they were tried."""
    assert all(goes_on(rate) for rate in rates[:-1]), "the first that does not pass is the last that is tried"
    passed = [rate.profile for rate in rates if goes_on(rate)]
    return Sweep(
        rates=list(rates),
        untried=list(untried),
        deploy=passed[-1] if passed else None,
        exit_code=ExitCode.PASS if passed else rates[0].verdict.exit_code,
        notices=[Notice(code=code, detail=detail) for code, detail in _notices(rates)],
    )


def _notices(rates: Sequence[Rate]) -> Iterator[tuple[str, str]]:
    for milder, harsher in pairwise(rates):
        before, after = milder.bytes_per_session, harsher.bytes_per_session
        if before is not None and after is not None and after >= before:
            yield (
                "order",
                f"{harsher.profile} holds {after:,} bytes per session, no fewer than {milder.profile} before it",
            )
        gained = [cell.cell for cell in _better(milder.verdict, harsher.verdict)]
        if gained:
            more = f" and {len(gained) - 1} more cells" if len(gained) > 1 else ""
            yield "not-monotone", f"{harsher.profile} recalls more than {milder.profile} in {gained[0]}{more}"


def _better(milder: Verdict, harsher: Verdict) -> Iterator[CellVerdict]:
    """Cells whose interval lies wholly above the milder rate's: more recall from fewer bytes, which wants a reason."""
    before = {cell.cell: cell.interval for cell in milder.cells}
    for cell in harsher.cells:
        old = before.get(cell.cell)
        if cell.interval is not None and old is not None and cell.interval.lower > old.upper:
            yield cell
