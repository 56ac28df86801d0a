"""Salt: a few tokens near the start of a prompt that no prompt had before, so that no cache can know it."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable

DIGITS = 12
"""So many that two of ten thousand prompts are alike once in 20,000 runs."""
DRAWS = 64


class Salt:
    """Draws lines of digits that all have the same number of tokens."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        """``encode`` turns text into token ids; the commonest number of tokens of such a line is the salt's."""
        self._encode = encode
        self.tokens = Counter(len(self._draw()) for _ in range(DRAWS)).most_common(1)[0][0]
        """Tokens of a salt."""

    def draw(self) -> list[int]:
        """Token ids of a line that was never drawn before."""
        while True:
            ids = self._draw()
            if len(ids) == self.tokens:
                return ids

    def _draw(self) -> list[int]:
        return self._encode(f"{secrets.randbelow(10**DIGITS):0{DIGITS}d}\n")
