"""Data classes: how far a text may go, from public to restricted.

A haystack's source has one, a backend and a store have a limit; nothing above a limit goes there.
"""

from __future__ import annotations

from enum import StrEnum

from evalgate.errors import RefusedError

__all__ = ["DataClass", "check_limits"]


class DataClass(StrEnum):
    """Least to most confidential."""

    PUBLIC = "public"
    INTERNAL = "internal"
    CONFIDENTIAL = "confidential"
    RESTRICTED = "restricted"

    def exceeds(self, limit: DataClass) -> bool:
        """Whether data of this class may not go where ``limit`` is the most that may."""
        order = list(DataClass)
        return order.index(self) > order.index(limit)


def check_limits(data: DataClass, what: str, limits: dict[str, tuple[DataClass, str]]) -> None:
    """Raise RefusedError where ``data``, the class of ``what``, exceeds a limit.

    ``limits``: what has the limit -> the limit and the option that sets it.
    """
    exceeded = {where: pair for where, pair in limits.items() if data.exceeds(pair[0])}
    if exceeded:
        faults = "; ".join(f"{where} may hold {limit} at most" for where, (limit, _) in exceeded.items())
        options = " and ".join(f"{option} {data}" for _, option in exceeded.values())
        raise RefusedError(
            f"{what} is {data}, and {faults}; if it may go there, say so with {options}, or ask other text"
        )
