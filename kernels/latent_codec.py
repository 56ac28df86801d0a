"""Forms in which cached latents are stored: in a floating dtype, or in 8 bits with a scale for each token and part.

A token's row is its latent (width L) and its shared key part (width R); the two have different sizes, so each has its
scale.  Attention works on decoded rows, so 8 bits save memory, not arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

INT8_TOP = 127.0
"""Largest int8 code; -128 is not used, so that the codes are symmetric."""
FP8_TOP = 448.0
"""Largest number of float8_e4m3fn, which has no infinity."""


class Column(NamedTuple):
    """One tensor of the stored rows: ``[..., width]``."""

    width: int
    dtype: torch.dtype


class LatentCodec(ABC):
    """One way to store the latents of a model; it keeps nothing between calls."""

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """The tensors that rows are stored as; the last is a floating one, and NaN in it decodes to NaN."""

    @abstractmethod
    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Columns of ``[..., L + R]`` rows; NaN or infinity stays visible, and away from other tokens."""

    @abstractmethod
    def decode(self, columns: tuple[Tensor, ...]) -> Tensor:
        """Rows ``[..., L + R]`` in the compute dtype; a view where they are stored in it."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's row."""
        return sum(column.width * column.dtype.itemsize for column in self.columns)

    def as_stored(self, rows: Tensor) -> Tensor:
        """What is left of rows once they were stored."""
        return self.decode(self.encode(rows))


@dataclass(frozen=True, slots=True)
class FloatLatents(LatentCodec):
    """Rows of ``width`` in a floating dtype."""

    width: int
    stored: torch.dtype
    compute: torch.dtype

    @property
    def columns(self) -> tuple[Column, ...]:
        """The rows."""
        return (Column(self.width, self.stored),)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rounded to the nearest."""
        return (rows.to(self.stored),)

    def decode(self, columns: tuple[Tensor, ...]) -> Tensor:
        """In the compute dtype."""
        return columns[0].to(self.compute)


class ScaledLatents(LatentCodec):
    """Codes of 8 bits and float32 scales ``[..., 2]``: of the latent (width L) and of the shared part (width R)."""

    code: torch.dtype
    top: float
    """Largest code."""

    def __init__(self, latent: int, shared: int, compute: torch.dtype) -> None:
        self._parts = [latent, shared]
        self._compute = compute

    @property
    def columns(self) -> tuple[Column, ...]:
        """Codes and scales."""
        return Column(sum(self._parts), self.code), Column(2, torch.float32)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Each part in steps of its largest entry over ``top``."""
        parts = rows.float().split_with_sizes(self._parts, dim=-1)
        scales = torch.stack([part.abs().amax(dim=-1) for part in parts], dim=-1) / self.top
        safe = scales.masked_fill(scales == 0.0, 1.0)
        steps = torch.cat([part / safe[..., i : i + 1] for i, part in enumerate(parts)], dim=-1)
        # A scale that is a denormal number is a rough one; without the clamp its largest codes would wrap around.
        return self._to_codes(steps.clamp_(-self.top, self.top)), scales

    def decode(self, columns: tuple[Tensor, ...]) -> Tensor:
        """Codes times scales."""
        codes, scales = columns
        numbers = self._from_codes(codes)
        for i, part in enumerate(numbers.split_with_sizes(self._parts, dim=-1)):
            part.mul_(scales[..., i : i + 1])
        return numbers.to(self._compute)

    @abstractmethod
    def _to_codes(self, steps: Tensor) -> Tensor:
        """float32 of at most ``top``, owned by the callee -> codes."""

    @abstractmethod
    def _from_codes(self, codes: Tensor) -> Tensor:
        """Codes -> float32, owned by the caller."""


class Int8Latents(ScaledLatents):
    """Codes -127 to 127: an entry errs by up to 1/254 of the largest one of its part."""

    code = torch.int8
    top = INT8_TOP

    def _to_codes(self, steps: Tensor) -> Tensor:
        return steps.round_().to(self.code)

    def _from_codes(self, codes: Tensor) -> Tensor:
        return codes.float()


class Fp8Latents(ScaledLatents):
    """float8_e4m3fn, three bits of mantissa: an entry errs by up to 1/16 of itself."""

    code = torch.float8_e4m3fn
    top = FP8_TOP

    def __init__(self, latent: int, shared: int, compute: torch.dtype) -> None:
        super().__init__(latent, shared, compute)
        # Looking the 256 numbers up takes a quarter of the time of torch's conversion on a CPU.
        self._numbers = torch.arange(256, dtype=torch.uint8).view(self.code).float()

    def _to_codes(self, steps: Tensor) -> Tensor:
        return steps.to(self.code)

    def _from_codes(self, codes: Tensor) -> Tensor:
        numbers = self._numbers.to(codes.device)
        return numbers.index_select(0, codes.view(torch.uint8).flatten().int()).view(codes.shape)


def machine_has_fp8(device: torch.device | str = "cpu") -> bool:
    """Whether this torch can store float8_e4m3fn on ``device`` and turn it into numbers and back.

    Storage is all that is asked for: nothing is computed in 8 bits.
    """
    try:
        numbers = torch.tensor([0.0, 1.75, -FP8_TOP], device=device)
        stored = torch.empty(3, dtype=torch.float8_e4m3fn, device=device)
        stored[torch.arange(3, device=device)] = numbers.to(torch.float8_e4m3fn)
        return torch.equal(stored[:3].float(), numbers)
    except (NotImplementedError, RuntimeError, TypeError):  # what torch raises where a dtype or an operation is missing
        return False
