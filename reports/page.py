"""From run folders to a page: the entry of the ``report`` command."""

from __future__ import annotations

from evalgate.gates.verdict import Verdict
from evalgate.reports.html import render
from evalgate.reports.source import Source
from evalgate.reports.view import ReportView, build_view
from evalgate.store import RunFolder


def report_run(run: RunFolder, verdict: Verdict | None, baseline: RunFolder | None) -> str:
    """The HTML page of a complete run, its verdict and its baseline, each where there is one.

    Raises InvalidRunError or TamperedError where a run's files are not as they were written, and MismatchError
    where the verdict is of another run.
    """
    return render(view_run(run, verdict, baseline))


def view_run(run: RunFolder, verdict: Verdict | None, baseline: RunFolder | None) -> ReportView:
    """The view behind ``report_run``, for callers that write the page themselves."""
    return build_view(_source(run), verdict, _source(baseline) if baseline else None)


def _source(run: RunFolder) -> Source:
    return Source(run.verify(), run.trials(), run.contexts())
