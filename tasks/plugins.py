"""Families, scorers, haystack sources and suites of other packages, found by entry point.

What evalgate brings itself is looked for first, so no package can put its own in the place of one of ours.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, NamedTuple

from evalgate.errors import UnsupportedError

Kind = Literal["families", "scorers", "haystacks", "suites"]
GROUP = "evalgate."
"""Before a kind: the name of its group of entry points."""


class Plugin(NamedTuple):
    """One thing of another package."""

    name: str
    value: Any
    package: str
    version: str


def plugin_names(kind: Kind) -> list[str]:
    """Names of one kind that installed packages offer."""
    return sorted(_found(kind))


@cache
def plugin(kind: Kind, name: str) -> Plugin | None:
    """What an installed package offers under ``name``; None: nothing.

    Raises UnsupportedError for one that cannot be loaded, or that two packages offer.
    """
    offered = _found(kind).get(name, [])
    if not offered:
        return None
    packages = sorted({entry.dist.name if entry.dist else "?" for entry in offered})
    if len(packages) > 1:
        raise UnsupportedError(f"{kind} {name!r} is offered by {' and '.join(packages)}; remove one of the packages")
    entry = offered[0]
    try:
        value = entry.load()
    except Exception as error:  # another package's code may raise anything
        raise UnsupportedError(
            f"{kind} {name!r} of package {packages[0]} cannot be loaded ({error!r}); mend or remove the package"
        ) from error
    version = entry.dist.version if entry.dist else "?"
    return Plugin(name, value, packages[0], version)


def _found(kind: Kind) -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP + kind):
        found.setdefault(entry.name, []).append(entry)
    return found
