"""``chat@k``: speakers state a number and correct it; the last of k statements counts, whoever spoke in between."""

from __future__ import annotations

from evalgate.tasks.families.overwrite import Overwrite


class Chat(Overwrite):
    """As ``overwrite``, in turns of a conversation."""

    name = "chat"
    rungs = range(2, 17)
    first, later, ask = "claim", "correction", "ask_claim"
    framed = False
