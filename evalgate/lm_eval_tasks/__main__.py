"""Prints the folder of the tasks, for `lm_eval --include_path`; with arguments, runs lm-eval with model `evalgate`."""

from __future__ import annotations

import sys

from evalgate.lm_eval_tasks import path


def main() -> None:
    """Say where the tasks lie, or hand the arguments on."""
    if len(sys.argv) == 1:
        print(path())  # noqa: T201 - what it is for
        return
    from lm_eval.__main__ import cli_evaluate

    import evalgate.lm_eval_tasks.model  # noqa: F401 - it registers itself

    if "--include_path" not in sys.argv:
        sys.argv += ["--include_path", path()]
    cli_evaluate()


if __name__ == "__main__":
    main()
