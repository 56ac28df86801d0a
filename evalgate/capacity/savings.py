"""What stored prefixes save of prefill, and what a changed prompt template gives up."""

from __future__ import annotations

from typing import NamedTuple

from evalgate.capacity.lengths import Lengths
from evalgate.errors import RefusedError


class Savings(NamedTuple):
    """Of one day."""

    prefilled: float
    """Tokens of all prompts."""
    saved: float
    """Of those, taken from stored prefixes."""
    money: float | None
    """At the price of a million prefilled tokens; None: no price was given."""
    template_change: float
    """Tokens prefilled beside those on the day that a template changes, when each shared prefix is new once more."""

    @property
    def share(self) -> float:
        """Saved, of all."""
        return self.saved / self.prefilled


def savings(
    lengths: Lengths, *, requests: float, shared: int, hit_rate: float, prefixes: int = 1, price: float | None = None
) -> Savings:
    """``requests`` a day, of which ``hit_rate`` find their first ``shared`` tokens stored, from ``prefixes`` templates.

    A prompt shorter than that shares all its tokens but the last.  Raises RefusedError for a rate that is none.
    """
    if not 0 <= hit_rate <= 1 or requests <= 0 or shared < 0 or prefixes < 1 or (price is not None and price < 0):
        raise RefusedError(
            f"--requests {requests:g}, --shared {shared}, --hit-rate {hit_rate:g}, --prefixes {prefixes}: expected "
            "requests above 0, a rate from 0 to 1, and at least one prefix"
        )
    tokens = lengths.mean * requests
    each = float((lengths.tokens - 1).clip(max=shared).mean())
    saved = each * requests * hit_rate
    return Savings(tokens, saved, None if price is None else saved * price / 1e6, min(float(shared * prefixes), saved))
