"""What differs between two suites, in words; easier is whatever asks less."""

from __future__ import annotations

from collections.abc import Iterator

from evalgate.release import Change, Direction
from evalgate.tasks.suite import Suite


def suite_changes(old: Suite, new: Suite) -> list[Change]:
    """List every difference in what two suites ask, what is easier first."""
    found = [*_asked(old, new), *_settings(old, new)]
    order: list[Direction] = ["weaker", "stronger", "other"]
    return sorted(found, key=lambda change: order.index(change.direction))


def _asked(old: Suite, new: Suite) -> Iterator[Change]:
    for what in ("lengths", "tasks", "bands", "arms"):
        before, after = list(getattr(old, what)), list(getattr(new, what))
        gone = [str(item) for item in before if item not in after]
        come = [str(item) for item in after if item not in before]
        if gone:
            yield Change("weaker", f"{what}: no longer asked: {', '.join(gone)}")
        if come:
            yield Change("stronger", f"{what}: asked now: {', '.join(come)}")
    for band in old.bands:
        if band in new.bands and old.bands[band] != new.bands[band]:
            # Wider edges dilute a hole in the recall; which edges are easier, no rule can tell.
            yield Change("weaker", f"bands.{band}: {list(old.bands[band])} -> {list(new.bands[band])}")


def _settings(old: Suite, new: Suite) -> Iterator[Change]:
    bodies = [suite.model_dump(mode="json", by_alias=True) for suite in (old, new)]
    for section in ("haystack", "streams", "decoding", "placement", "prompting", "questions", "lm_eval"):
        before, after = (body[section] or {} for body in bodies)
        for field in dict.fromkeys([*before, *after]):
            was, now = before.get(field, "nothing"), after.get(field, "nothing")
            if was != now:
                yield Change("other", f"{section}.{field}: {was} -> {now}")
