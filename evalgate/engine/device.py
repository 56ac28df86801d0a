"""Where an engine runs: the device that its tensors are on, and the cores that its layers use there.

``cpu`` computes with torch operations, ``cuda`` with Triton kernels; ``cpu-interpret`` runs the same kernels on the
processor, slowly, so that the path of a GPU can be tested without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from evalgate.engine.config import ModelConfig
from evalgate.engine.decode_graphs import Recorder, again, cuda_graph
from evalgate.engine.kda_core import KdaCore, TorchKda
from evalgate.engine.mla_core import MlaCore, TorchMla
from evalgate.errors import UnsupportedError
from evalgate.kernels.moe import Experts, Router, grouped_moe, moe
from evalgate.kernels.ops import usable
from evalgate.kernels.rms_norm import rms_norm

RmsNorm = Callable[[Tensor, Tensor, float], Tensor]
"""As :func:`evalgate.kernels.rms_norm.rms_norm`."""
Moe = Callable[[Tensor, Router, Experts], Tensor]
"""As :func:`evalgate.kernels.moe.moe`."""


HEAD_WIDTHS = (16, 32, 64, 128)
"""Of linear attention, that Triton kernels are built for."""
LEAST_PAGE = 16
"""The fewest keys that a block of attention loads."""


class Device(NamedTuple):
    """A device that can be used."""

    name: str
    place: torch.device
    kda: KdaCore
    mla: MlaCore
    rms_norm: RmsNorm
    moe: Moe
    record: Recorder | None = None
    """How a decode step of a fixed shape is recorded; None: steps run as they come."""

    def check(self, config: ModelConfig, dtype: torch.dtype, page: int) -> None:
        """Raise UnsupportedError for a model or a setting that the device's kernels are not made for."""
        if self.record is None:
            return
        widths = ", ".join(map(str, HEAD_WIDTHS))
        if config.kda_layers and config.linear_width not in HEAD_WIDTHS:
            raise UnsupportedError(
                f"device {self.name}: linear-attention heads of width {config.linear_width} were found, the kernels "
                f"have {widths}; use --device cpu"
            )
        if dtype == torch.float64:
            raise UnsupportedError(f"device {self.name}: dtype fp64 has no kernels; use fp32 or bf16, or --device cpu")
        if page < LEAST_PAGE or page & (page - 1):
            raise UnsupportedError(
                f"device {self.name}: cache.page {page}; expected a power of two from {LEAST_PAGE} on, or --device cpu"
            )


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
