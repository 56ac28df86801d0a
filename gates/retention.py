"""Retention: when the text of a run expires, and how it goes while verdicts and digests stay what they are.

Text is what a model wrote: the answers of trials, those that verdicts quote, and the report beside the run. No verdict
rests on it, so a run is judged, compared and shown by its evidence as before.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from evalgate import disk
from evalgate.errors import InvalidRunError
from evalgate.records import Manifest
from evalgate.redaction import NOT_KEPT, REMOVED
from evalgate.store import RunFolder

__all__ = ["expired", "has_text", "remove_text"]

REPORT = "report.html"
QUOTED = ("baseline_answer", "candidate_answer")
"""Fields of a flip that quote a model."""


def expired(manifest: Manifest, now: datetime, older_than: timedelta | None = None) -> bool:
    """Whether the run's own rule, or ``older_than``, says that its text has to go.

    Raises InvalidRunError: the manifest has no readable time.
    """
    days = None if manifest.text is None else manifest.text.days
    limits = [limit for limit in (None if days is None else timedelta(days=days), older_than) if limit is not None]
    try:
        ended = datetime.fromisoformat(manifest.finished or manifest.started)
    except ValueError as error:
        raise InvalidRunError(f"run {manifest.run_id} has no readable time ({error}); look at its manifest") from error
    if ended.tzinfo is None:
        ended = ended.replace(tzinfo=UTC)
    return bool(limits) and now - ended >= min(limits)


def remove_text(run: RunFolder, at: str) -> None:
    """Remove the text of a complete run, noted as removed ``at``; safe to repeat, and to go on with after a kill.

    Raises InvalidRunError (not complete, unparsable) or TamperedError (a file that was changed; nothing is washed
    clean).
    """
    with run.exclusive():
        run.verify()
        for name, body in _quoting(run).items():
            run.write_verdict(name, _without_quotes(body))
        with disk.told("remove", run.path / REPORT):
            (run.path / REPORT).unlink(missing_ok=True)
        if not run.answers_rewritten():
            run.rewrite_answers(_gone, at)


def has_text(run: RunFolder) -> bool:
    """Whether something is left to remove: answers, or quotes of a baseline in a verdict that was given afterwards.

    Raises as ``remove_text``.
    """
    return not run.answers_rewritten() or bool(_quoting(run))


def _quoting(run: RunFolder) -> dict[str, dict[str, Any]]:
    """Verdicts that quote a model, as JSON by name."""
    bodies = {name: json.loads(content) for name, content in run.verdicts().items()}
    return {name: body for name, body in bodies.items() if _without_quotes(body) != body}


def _without_quotes(verdict: dict[str, Any]) -> dict[str, Any]:
    flips = [
        flip | {field: _gone(flip[field]) for field in QUOTED if field in flip} for flip in verdict.get("flips", [])
    ]
    return verdict | {"flips": flips}


def _gone(text: str) -> str:
    """What stands for a text afterwards; that there was none stays visible."""
    return text if text in {"", NOT_KEPT} else REMOVED
