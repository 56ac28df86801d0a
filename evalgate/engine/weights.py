"""Weights by name, read from memory-mapped files when they are asked for, and kept by nobody here.

A model that is built from them holds the only copy: each tensor is cast and joined straight into the memory where it
stays, and the pages of the file that were read for it are let go before the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import reduce
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from evalgate.engine.weight_files import Shape, Stored
from evalgate.errors import CheckpointError


class Place(NamedTuple):
    """Where the numbers of one tensor are: in one stored tensor, or in several, one after another."""

    shape: Shape
    parts: tuple[Stored, ...]


class Weights(Mapping[str, Tensor]):
    """Tensors of a checkpoint; each look-up reads, so whoever needs one twice keeps it.

    Reading raises CheckpointError, with file and name, for a tensor that is not finite or has changed since the headers
    were read.
    """

    def __init__(self, places: Mapping[str, Place], device: torch.device | None = None) -> None:
        self._places = places
        self._device = device

    def on(self, device: torch.device) -> Weights:
        """The same, read into the memory of ``device``."""
        return Weights(self._places, device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a tensor; reads nothing."""
        return name in self._places

    def __getitem__(self, name: str) -> Tensor:
        """A new tensor in the dtype of the file (the widest where pieces differ)."""
        return self.read(name, dtype=reduce(torch.promote_types, (part.dtype for part in self._places[name].parts)))

    @property
    def numel(self) -> int:
        """Number of weights; reads nothing."""
        return sum(math.prod(place.shape) for place in self._places.values())

    def read(self, *names: str, dtype: torch.dtype) -> Tensor:
        """The tensors one under another (along their first dimension) in one new tensor of ``dtype``."""
        places = [self._places[name] for name in names]
        inner = {place.shape[1:] for place in places}
        assert len(inner) == 1, f"{names} have rows of unequal shapes {sorted(inner)}"
        target = torch.empty(sum(place.shape[0] for place in places), *inner.pop(), dtype=dtype, device=self._device)
        _fill(target.view(-1), [part for place in places for part in place.parts])
        return target


def _fill(target: Tensor, parts: list[Stored]) -> None:
    """Copy stored tensors one after another into flat memory, casting on the way."""
    files = {part.file for part in parts}
    start = 0
    try:
        with ExitStack() as stack:
            opened = {file: stack.enter_context(safe_open(file, framework="pt")) for file in files}
            for part in parts:
                run = target[start : start + math.prod(part.shape)]
                _copy(opened[part.file].get_tensor(part.name), run, part)
                start += len(run)
    except (SafetensorError, OSError) as error:
        names = ", ".join(sorted(file.name for file in files))
        raise CheckpointError(f"{names} cannot be read ({error}), as it could a moment ago; fetch it again") from error


def _copy(mapped: Tensor, run: Tensor, part: Stored) -> None:
    if tuple(mapped.shape) != part.shape:
        raise CheckpointError(f"{part.file}: tensor {part.name} has changed since the checkpoint was opened")
    run.copy_(mapped.view(-1))
    # One pass over what was just written, without a mask of its size: both ends are NaN where any number is.
    low, high = run.aminmax()
    if not (low.isfinite() and high.isfinite()):
        raise CheckpointError(f"{part.file}: tensor {part.name} holds NaN or infinity; fetch it again")
