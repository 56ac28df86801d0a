"""``code@k``: one function among k, told apart by name; what it returns is asked."""

from __future__ import annotations

from evalgate.tasks.families.multikey import Multikey


class Code(Multikey):
    """Functions of one line; the register ``code`` gives them company."""

    name = "code"
    fact, ask = "function", "ask_function"
    framed = False
    long_lines = True
