"""What was read from machine code, kept between processes by everything that the machine code depends on.

A file that cannot be read or written costs a compilation, never an answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from pathlib import Path

import triton

from evalgate.kernels.gpu import aot
from evalgate.kernels.gpu.chips import Chip
from evalgate.kernels.gpu.launch import Launch

FORMAT = 1
"""Raised when :class:`~evalgate.kernels.gpu.aot.Build` or the way it is read changes."""


def folder() -> Path:
    """Where the results are: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "evalgate" / "kernels"


def digest(launch: Launch, chip: Chip) -> str:
    """Name of a result: the kernel's source and that of all it calls, its types, constants, options and the chip."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    content = aot.source(launch).hash()  # source with its callees, types, constants and alignments
    parts = [FORMAT, triton.__version__, platform.machine(), content, aot.options(launch), chip]
    parts.append(sorted(get_cache_invalidating_env_vars().items()))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def cached_build(launch: Launch, chip: Chip) -> aot.Build:
    """:func:`~evalgate.kernels.gpu.aot.build`, or what it said before of the same code."""
    path = folder() / f"{digest(launch, chip)}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return aot.Build(**json.loads(path.read_text(encoding="utf-8")))
    build = aot.build(launch, chip)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{os.getpid()}")
        half.write_text(json.dumps(build._asdict()), encoding="utf-8")
        half.replace(path)
    return build
