"""Which kernels there are, and how each is launched at the published shapes.

A module of the list has ``published() -> tuple[Launch, ...]``.
"""

from __future__ import annotations

import importlib

from evalgate.kernels.gpu.launch import Launch

MODULES = tuple(
    f"evalgate.kernels.gpu.{name}"
    for name in (
        "kda_prefill",
        "kda_decode",
        "short_conv",
        "state_codec",
        "rms_norm",
        "mla_decode",
        "mla_prefill",
        "lse_merge",
    )
)
"""The project's own."""
FLA = "evalgate.kernels.gpu.fla_launches"
"""Kernels of flash-linear-attention, for comparison; they need the extra ``fla``."""


def launches(module: str) -> tuple[Launch, ...]:
    """The launches of one module; each has a name of its own."""
    found: tuple[Launch, ...] = importlib.import_module(module).published()
    names = [launch.name for launch in found]
    assert len(set(names)) == len(names) > 0, f"{module}: launches need names, each its own: {names}"
    return found
