"""Shapes and random inputs of the kernels, for `gpu_check.py`; fresh numbers each time, repeatable by their seed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from evalgate.kernels.gpu.state_codec import StoredStates


class Shape(NamedTuple):
    """Sizes of a layer."""

    heads: int
    width: int
    """Of a head's keys and of its values."""
    latent: int
    """Of a cached latent, without its shared key part."""
    shared: int
    """Of a latent's shared key part."""
    nope: int
    """Of a head's key without the shared part, and of its value."""
    taps: int
    page: int
    layers: int
    """With a recurrent state."""
    hidden: int

    @property
    def channels(self) -> int:
        """Of the short convolution: queries, keys and values."""
        return 3 * self.heads * self.width


PUBLISHED = Shape(heads=32, width=128, latent=512, shared=64, nope=128, taps=4, page=64, layers=20, hidden=2304)
"""Kimi-Linear-48B."""
TINY = Shape(heads=2, width=32, latent=32, shared=16, nope=16, taps=4, page=16, layers=2, hidden=144)
"""For the interpreter."""


class Maker:
    """Random tensors on one device."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(seed)
        self.host = torch.Generator().manual_seed(seed)
        """Of numbers that both a processor and the device are given."""

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
        """Normal numbers; made in ``dtype``, so that the largest inputs need no room beside them."""
        return torch.empty(shape, dtype=dtype, device=self.device).normal_(0.0, scale, generator=self._generator)

    def uniform(self, *shape: int, low: float, high: float) -> Tensor:
        """float32 numbers between ``low`` and ``high``."""
        return torch.empty(shape, device=self.device).uniform_(low, high, generator=self._generator)

    def order(self, count: int, start: int = 0) -> Tensor:
        """The numbers from ``start`` on, ``count`` of them, shuffled: int64."""
        return torch.randperm(count, generator=self._generator, device=self.device) + start

    def indices(self, *values: int) -> Tensor:
        """int64 numbers as given."""
        return torch.tensor(values, dtype=torch.int64, device=self.device)


class KdaInputs(NamedTuple):
    """Raw projections of N tokens (or rows), as the kernels of Kimi Delta Attention take them."""

    q: Tensor
    k: Tensor
    v: Tensor
    f: Tensor
    beta: Tensor
    a_log: Tensor
    dt_bias: Tensor

    @classmethod
    def random(cls, make: Maker, tokens: int, shape: Shape, dtype: torch.dtype) -> KdaInputs:
        """Gates from nearly none to tens per step, head by head."""
        wide = (tokens, shape.heads, shape.width)
        q, k, v, f = (make.normal(*wide, dtype=dtype, scale=scale) for scale in (1.0, 1.0, 1.0, 2.0))
        beta = make.normal(tokens, shape.heads, dtype=dtype)
        a_log = make.uniform(shape.heads, low=-6.0, high=2.5)
        return cls(q, k, v, f, beta, a_log, make.normal(shape.heads, shape.width))

    @property
    def nbytes(self) -> int:
        """Bytes of the projections, and of an output like ``v``."""
        return sum(x.nbytes for x in (self.q, self.k, self.v, self.v, self.f, self.beta))


class Latents(NamedTuple):
    """Paged latents of a batch, pages in no order."""

    rows: Tensor
    """``[pages * page, L + R]``."""
    table: Tensor
    """int64 ``[B, P]``."""

    @classmethod
    def random(cls, make: Maker, lengths: list[int], shape: Shape, dtype: torch.dtype) -> Latents:
        """For rows of so many positions; page 0 belongs to nobody and is NaN."""
        counts = [-(-length // shape.page) for length in lengths]
        pages = make.order(sum(counts), start=1)
        table = torch.full((len(lengths), max(*counts, 1)), -1, dtype=torch.int64, device=make.device)
        for row, own in enumerate(torch.split(pages, counts)):
            table[row, : len(own)] = own
        rows = make.normal((1 + sum(counts)) * shape.page, shape.latent + shape.shared, dtype=dtype)
        rows[: shape.page] = torch.nan
        return cls(rows, table)


def empty_states(slots: int, shape: Shape, form: str, device: torch.device, layers: int = 0) -> StoredStates:
    """Room for states in a form: ``fp32``, ``bf16``, ``int8`` or ``int4``; for several layers if asked."""
    lead = (layers, slots) if layers else (slots,)
    columns = shape.width // 2 if form == "int4" else shape.width
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8, "int4": torch.uint8}[form]
    codes = torch.zeros(*lead, shape.heads, shape.width, columns, dtype=dtype, device=device)
    if not form.startswith("int"):
        return StoredStates(codes)
    return StoredStates(codes, torch.zeros(*lead, shape.heads, shape.width, device=device))
