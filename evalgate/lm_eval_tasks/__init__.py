"""The suites as tasks of lm-evaluation-harness: `lm_eval --include_path "$(python -m evalgate.lm_eval_tasks)"`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["path"]


def path() -> str:
    """The folder that lm-eval looks for tasks in, for ``--include_path`` or ``TaskManager(include_path=...)``."""
    return str(Path(__file__).parent)
