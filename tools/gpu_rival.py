"""flash-linear-attention's kernels for the same inputs, where fla-core is installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import torch
from gpu_clock import Run
from gpu_inputs import KdaInputs, Shape

GATED = {"use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True, "output_final_state": True}
"""Norms and gates are the kernel's, as they are ours."""


class Rival:
    """Its launchers; importing them asks for a GPU."""

    def __init__(self) -> None:
        from fla.ops.kda import chunk_kda, fused_recurrent_kda

        self._chunk: Any = chunk_kda
        self._recurrent: Any = fused_recurrent_kda

    def prefill(self, inputs: KdaInputs, shape: Shape) -> Run:
        """``chunk_kda`` over one sequence."""
        ready = _arguments(inputs, shape, 0)
        return lambda: self._chunk(**ready, **GATED)

    def decode(self, inputs: KdaInputs, shape: Shape) -> Run:
        """``fused_recurrent_kda``, one token of each row."""
        ready = _arguments(inputs, shape, 1)
        return lambda: self._recurrent(**ready, **GATED)


def find_rival() -> Rival | None:
    """The launchers, or None where the package is not installed, or not whole."""
    if find_spec("fla") is None:
        return None
    try:
        return Rival()
    except ImportError as error:
        print(f"fla-core is installed but cannot be imported ({error}); nothing is compared with it", file=sys.stderr)
        return None


def _arguments(inputs: KdaInputs, shape: Shape, time: int) -> dict[str, Any]:
    """``time``: the dimension that is added, 1 where every row is a sequence; its beta is given activated."""
    named = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "g": inputs.f, "beta": inputs.beta.sigmoid()}
    ready: dict[str, Any] = {name: x.unsqueeze(time) for name, x in named.items()}
    rows = ready["q"].shape[0]
    state = torch.zeros(rows, shape.heads, shape.width, shape.width, device=inputs.q.device)
    return ready | {"A_log": inputs.a_log, "dt_bias": inputs.dt_bias.flatten(), "initial_state": state}
