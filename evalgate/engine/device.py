"""Where an engine runs: the device that its tensors are on, and the cores that its layers use there.

``cpu`` computes with torch operations, ``cuda`` with Triton kernels; ``cpu-interpret`` runs the same kernels on the
processor, slowly, so that the path of a GPU can be tested without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from evalgate.engine.decode_graphs import Recorder, again, cuda_graph
from evalgate.engine.kda_core import KdaCore, TorchKda
from evalgate.engine.mla_core import MlaCore, TorchMla
from evalgate.kernels.moe import Experts, Router, grouped_moe, moe
from evalgate.kernels.ops import usable
from evalgate.kernels.rms_norm import rms_norm

RmsNorm = Callable[[Tensor, Tensor, float], Tensor]
"""As :func:`evalgate.kernels.rms_norm.rms_norm`."""
Moe = Callable[[Tensor, Router, Experts], Tensor]
"""As :func:`evalgate.kernels.moe.moe`."""


class Device(NamedTuple):
    """A device that can be used."""

    name: str
    torch: torch.device
    kda: KdaCore
    mla: MlaCore
    rms_norm: RmsNorm
    moe: Moe
    record: Recorder | None = None
    """How a decode step of a fixed shape is recorded; None: steps run as they come."""


CPU = Device("cpu", torch.device("cpu"), TorchKda(), TorchMla(), rms_norm, moe)


def open_device(name: str) -> Device:
    """A device by name: ``cpu``, ``cuda`` or ``cpu-interpret``; it is used, or it is an error.

    Raises UnknownNameError for another name, UnsupportedError, with the remedy, where the device cannot be used.
    """
    usable(name)
    if name == "cpu":
        return CPU
    # Only here: triton is not everywhere, and takes a second to import.
    from evalgate.engine.triton_cores import TritonKda, TritonMla
    from evalgate.kernels.gpu.rms_norm import rms_norm as triton_rms_norm

    place = torch.device("cuda" if name == "cuda" else "cpu")
    return Device(
        name, place, TritonKda(), TritonMla(), triton_rms_norm, experts_of, cuda_graph if name == "cuda" else again
    )


def experts_of(x: Tensor, router: Router, experts: Experts) -> Tensor:
    """In grouped products where their type allows it."""
    return (grouped_moe if x.dtype == torch.bfloat16 else moe)(x, router, experts)
