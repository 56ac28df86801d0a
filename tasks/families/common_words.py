"""``common@k``: k words stand equally often, far more often than any other; which, is asked.

After RULER's common words (Hsieh et al., 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

from evalgate.tasks.families.frequent_words import Frequent

IN_LINE = 5
"""Asked words in one line; the next line goes on where it stopped."""


class Common(Frequent):
    """Every asked word in turn, so that their counts differ by one at most."""

    name = "common"
    rungs = range(2, 11)

    def pattern(self, wanted: Sequence[str], line: int) -> list[str]:
        return [wanted[(line * IN_LINE + i) % len(wanted)] for i in range(min(IN_LINE, len(wanted)))]
