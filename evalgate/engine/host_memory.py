"""How much memory this process may still take: what the machine has left, and what its container lets it have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

UNKNOWN = 4 * 2**30
V2 = ("memory.max", "memory.current")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
"""Files of a control group, version 2 and version 1: its limit and what it has taken."""


def available_memory(root: Path = Path("/")) -> int:
    """Bytes, of ``root``'s /proc and /sys: what is free without swapping, and within the limit of every control group.

    4 GiB where the system does not say.
    """
    free = _free(root / "proc/meminfo")
    return max(0, min([free, *_left(root)]))


def _free(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return UNKNOWN


def _left(root: Path) -> Iterator[int]:
    """What each control group of this process leaves, from its own to the topmost; one without a limit says nothing."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        group = PurePosixPath(place.lstrip("/"))
        for folder in (group, *group.parents):
            left = _of_group(top / folder, V1 if controllers else V2)
            if left is not None:
                yield left


def _of_group(folder: Path, names: tuple[str, str]) -> int | None:
    try:
        limit, taken = ((folder / name).read_text(encoding="ascii").strip() for name in names)
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(taken)
