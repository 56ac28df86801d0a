"""How large the pools may be: what a session of a given length needs, and what memory allows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from evalgate.engine.compression import Compression
from evalgate.engine.config import ModelConfig
from evalgate.errors import DoesNotFitError

SHARE = 0.7
"""Part of the memory that is free at start which the pools may come to fill; the rest is for passes and others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Sizes of the pools. Their memory is only taken page by page, as sessions grow."""

    tokens: int
    """Most tokens of one session."""
    slots: int
    pages: int
    limit: str
    """What sets the limit, in words."""


def plan_pools(
    config: ModelConfig,
    compression: Compression,
    dtype: torch.dtype,
    state_dtype: torch.dtype,
    *,
    page: int,
    tokens: int | None,
    sessions: int,
) -> Budget:
    """Size the pools for one parent and ``sessions - 1`` forks.

    Raises DoesNotFitError when ``tokens`` is more than the model's window or than memory allows.
    """
    width = config.latent_row + 8 if compression.kv_int8 else config.latent_row * dtype.itemsize
    page_bytes = config.mla_layers * width * page
    channels = config.linear_heads * config.linear_width
    slot_bytes = (
        config.kda_layers
        * channels
        * (config.linear_width * state_dtype.itemsize + 3 * (config.conv_taps - 1) * dtype.itemsize)
    )
    free = available_memory()
    room = int(free * SHARE) - (sessions + 1) * slot_bytes
    if room < 0:
        raise DoesNotFitError(
            f"{sessions} sessions need {(sessions + 1) * slot_bytes:,} bytes of state, {free:,} bytes of memory are "
            "free; allow fewer sessions"
        )
    # Forks share a context, so one session's pages and as much again must fit; where a hole is cut each has its own.
    copies = sessions if compression.kv_keep < 1.0 else min(2, sessions)
    affordable = room // page_bytes if page_bytes else -(-config.window // page) * sessions
    fit = affordable // copies * page
    most, limit = (config.window, "the model's window") if config.window <= fit else (fit, "memory")
    if tokens is not None and tokens > most:
        raise DoesNotFitError(f"{tokens} tokens asked for, at most {most} fit ({limit}); ask for shorter contexts")
    if tokens is not None:
        most, limit = tokens, "the engine's max_tokens"
    return Budget(tokens=most, slots=sessions, pages=min(affordable, (-(-most // page) + 1) * sessions), limit=limit)


def available_memory() -> int:
    """Bytes that new allocations may take without swapping, as Linux says; 4 GiB where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 4 * 2**30
