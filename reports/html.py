"""The HTML pages: each one file that loads nothing, runs nothing, and shows a view as it is.

The page carries a content security policy that forbids every load and every script; the one style sheet inside is
allowed by its digest, so not even injected markup could style or send anything.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from evalgate import disk
from evalgate.reports.excerpt import inert
from evalgate.reports.state_view import StateView
from evalgate.reports.sweep_view import SweepView
from evalgate.reports.view import ReportView

MAX_BYTES = 1_000_000
"""Upper limit of a page's size; the caps on excerpts and rows keep it far below."""


def render(view: ReportView) -> str:
    """The whole report as text; the same view gives the same bytes."""
    return _page("report.html.j2", view)


def render_state(view: StateView) -> str:
    """The page of a measured state as text; the same view gives the same bytes."""
    return _page("state.html.j2", view)


def render_sweep(view: SweepView) -> str:
    """The page of a sweep as text; the same view gives the same bytes."""
    return _page("sweep.html.j2", view)


def _page(template: str, view: ReportView | StateView | SweepView) -> str:
    style = files("evalgate.reports").joinpath("templates", "report.css").read_text(encoding="utf-8").strip()
    page = _environment().get_template(template)
    return page.render(
        view=view,
        style=Markup(style),  # noqa: S704 - the project's own style sheet
        style_digest=_csp_digest(style),
    )


def write(view: ReportView, path: Path) -> None:
    """Write the page whole, in one rename. Raises StorageError."""
    disk.replace(path, render(view).encode("utf-8"))


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("evalgate.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=inert,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _csp_digest(style: str) -> str:
    """The digest by which the policy allows the page's own style sheet."""
    return base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
