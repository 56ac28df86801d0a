"""What an engine counts, by name; a count of nothing is reported as 0, so that a silent cache shows."""

from __future__ import annotations

from collections import Counter

NAMES = (
    "prefix.queries",
    "prefix.hits",
    "prefix.tokens_asked",
    "prefix.tokens_reused",
    "prefix.kv_tokens_matched",
    "prefix.state_tokens_matched",
    "prefix.tokens_lost_to_clamping",
    "store.kept",
    "store.skipped.short",
    "store.skipped.present",
    "store.skipped.near",
    "store.skipped.protected",
    "evicted.states.slots",
    "evicted.states.asked",
    "evicted.pages.pages",
    "forks",
    "copied_bytes",
    "prefilled_tokens",
    "decoded_tokens",
    "replayed_tokens",
    "preemptions.memory",
    "preemptions.priority",
    "preemptions.asked",
    "resumed",
    "cancelled",
    "nonfinite_logits",
)
"""``prefix.*``: lookups; matched tokens split by kind, and those that no snapshot stands for (clamped).
``store.*``: snapshots kept, and skipped by reason.  ``evicted.KIND.REASON``: entries let go for want of state slots
or of pages, or on request.  ``replayed_tokens``: tokens taken in again after a preemption."""


class Counters:
    """Counts under :data:`NAMES`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(NAMES, 0))

    def add(self, name: str, count: int = 1) -> None:
        """Count ``count`` more; a name that is not listed is an error of the caller's."""
        assert name in self._counts, f"{name} is not counted"
        self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        """The count so far."""
        return self._counts[name]

    def as_dict(self) -> dict[str, int]:
        """All counts."""
        return dict(self._counts)
