"""Which form of each operation runs on which device: one table, and why nothing else is possible here.

A form is a module.  On ``cpu`` it is made of torch operations; on ``cuda`` it is a Triton kernel, except where torch's
own products are the kernel; ``cpu-interpret`` runs the same Triton code on the processor, slowly, to test it.
There is no falling back: a device that cannot be used is refused.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from typing import Literal, NamedTuple

from evalgate.errors import UnknownNameError, UnsupportedError, nearest

Device = Literal["cpu", "cuda", "cpu-interpret"]
DEVICES: tuple[Device, ...] = ("cpu", "cuda", "cpu-interpret")
OLDEST = (8, 0)
"""Compute capability that the kernels need: sm_80 brought products of bf16 tiles and asynchronous copies."""


class Forms(NamedTuple):
    """Import paths of one operation's modules."""

    cpu: str
    cuda: str

    @property
    def torch_everywhere(self) -> bool:
        """Whether one module serves every device."""
        return self.cpu == self.cuda


def _pair(name: str) -> Forms:
    return Forms(f"evalgate.kernels.{name}", f"evalgate.kernels.gpu.{name}")


def _torch(name: str) -> Forms:
    return Forms(f"evalgate.kernels.{name}", f"evalgate.kernels.{name}")


OPS = {
    "kda_prefill": _pair("kda_prefill"),
    "kda_decode": _pair("kda_decode"),
    "kda_gate": _pair("kda_gate"),
    "short_conv": _pair("short_conv"),
    "state_codec": _pair("state_codec"),
    "rms_norm": _pair("rms_norm"),
    "mla_prefill": _pair("mla_prefill"),
    "mla_decode": _pair("mla_decode"),
    "lse_merge": _pair("lse_merge"),
    "latent_codec": _torch("latent_codec"),
    "moe": _torch("moe"),
}


class Obstacle(NamedTuple):
    """Why a device cannot be used here, and what to do about it."""

    what: str
    remedy: str


class Choice(NamedTuple):
    """The form of one operation that a device uses."""

    op: str
    form: Literal["torch", "triton"]
    path: str
    why: str


def resolve(op: str, device: str) -> Choice:
    """The form of ``op`` on ``device``, not yet imported.

    Raises UnknownNameError for a name that is not in the tables, UnsupportedError where the device cannot be used.
    """
    if op not in OPS:
        raise UnknownNameError(f"no operation is called {op!r}{nearest(op, list(OPS))}")
    usable(device)
    return _choose(op, device, f"device {device}")


def usable(device: str) -> None:
    """Raise UnknownNameError or UnsupportedError, with the remedy, where ``device`` cannot be used."""
    if device not in DEVICES:
        raise UnknownNameError(f"no device is called {device!r}; known: {', '.join(DEVICES)}")
    obstacle = None
    if device != "cpu":
        obstacle = cuda_obstacle() if device == "cuda" else interpreter_obstacle()
    if obstacle:
        raise UnsupportedError(f"no device {device} here: {obstacle.what}; {obstacle.remedy}, or use --device cpu")


def explain(device: str | None = None) -> list[Choice]:
    """What each operation uses on ``device``, and why; None: on the best device that can be used."""
    if device is not None:
        usable(device)
        return [_choose(op, device, f"device {device}") for op in OPS]
    obstacle = cuda_obstacle()
    if obstacle:
        return [_choose(op, "cpu", f"no cuda here: {obstacle.what}") for op in OPS]
    return [_choose(op, "cuda", cuda_name()) for op in OPS]


def load(choice: Choice) -> object:
    """The module of a form."""
    return importlib.import_module(choice.path)


def cuda_name() -> str:
    """The GPU and its chip, where ``cuda`` can be used."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()}, sm_{major}{minor}"


def cuda_obstacle() -> Obstacle | None:
    """Why ``cuda`` cannot be used; None where it can."""
    if sys.platform != "linux":
        return Obstacle("the kernels are Triton's, which is for Linux", "run on Linux")
    if find_spec("triton") is None:
        return Obstacle("triton is not installed", "`pip install triton`")
    import torch

    if torch.version.cuda is None:
        return Obstacle(f"torch {torch.__version__} is built without CUDA", "install a CUDA build of torch")
    if not torch.cuda.is_available():
        return Obstacle(
            "torch finds no GPU", "see that `nvidia-smi` lists one and CUDA_VISIBLE_DEVICES does not hide it"
        )
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) < OLDEST:
        name = torch.cuda.get_device_name()
        return Obstacle(f"{name} is sm_{major}{minor}", "the kernels need sm_80 or later: run on such a GPU")
    return None


def interpreter_obstacle() -> Obstacle | None:
    """Why ``cpu-interpret`` cannot be used; None where it can."""
    if find_spec("triton") is None:
        return Obstacle("triton is not installed", "`pip install triton`")
    if os.environ.get("TRITON_INTERPRET") != "1":
        return Obstacle("TRITON_INTERPRET is not 1", "set it before the program starts")
    return None


def _choose(op: str, device: str, why: str) -> Choice:
    forms = OPS[op]
    if device == "cpu":
        return Choice(op, "torch", forms.cpu, why)
    if forms.torch_everywhere:
        return Choice(op, "torch", forms.cuda, f"{why}; torch's own kernels do it")
    return Choice(op, "triton", forms.cuda, why)
