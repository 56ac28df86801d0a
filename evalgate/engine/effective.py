"""What an engine really does, in the words of a profile, as its live objects have it."""

from __future__ import annotations

import torch

from evalgate.engine.memory import SessionMemory
from evalgate.engine.runner import Runner
from evalgate.engine.scheduler import Scheduler

NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.int8: "int8",
    torch.uint8: "int4",
    torch.float8_e4m3fn: "fp8",
}
"""Storage dtypes; int4 holds two codes in a byte."""
EVICTION = "priority-lru-cost"
"""The one order in which stored prefixes are let go."""


def effective_config(memory: SessionMemory, runner: Runner, scheduler: Scheduler) -> dict[str, dict[str, object]]:
    """Settings by section of a profile."""
    codec, pages, states = memory.codec, memory.pages, memory.states
    return {
        "state": {
            "dtype": codec.dtype if not codec.lossless else NAMES[states.recurrent.dtype],
            "scales": "per-channel" if codec.dtype in {"int8", "int4"} else None,
            "rank": codec.rank,
            "codec_every": codec.every,
            "error_feedback": bool(states.errors),
        },
        "snapshot": {"dtype": NAMES[memory.prefixes.snapshots.dtype]},
        "kv": {
            "dtype": NAMES[pages.columns[0].dtype],
            "keep": memory.compression.kv_keep,
            "window": memory.compression.kv_window,
        },
        "cache": {
            "prefix": scheduler.prefix,
            "snapshot_interval": memory.prefixes.interval,
            "eviction": EVICTION,
            "page": pages.page,
            "prefill_chunk": runner.chunk,
        },
    }
