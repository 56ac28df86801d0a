"""Prints the folder of the tasks, for `lm_eval --include_path`."""

from __future__ import annotations

from evalgate.lm_eval_tasks import path

print(path())  # noqa: T201 - what it is for
