"""Forms in which a recurrent state ``[..., K, V]`` is stored: as it is, in bfloat16, int8, int4, or at a low rank.

int8 and int4 are symmetric with one float32 scale for each key channel (a row of the matrix): the decay acts on key
channels, so that is where sizes differ.  int4 holds two codes in a byte.  A low rank keeps the strongest singular
directions as two factors, each stored in one of the other forms.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

IntWidth = Literal[4, 8]


class TensorSpec(NamedTuple):
    """Shape and dtype of one tensor of a stored form."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of such a tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


class Encoded(NamedTuple):
    """The tensors of one stored form.

    All zeros decode to zeros.  The last tensor is always a floating one, and NaN in it decodes to NaN: that is how
    freed memory is poisoned, since integer codes cannot say NaN.
    """

    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that they hold."""
        return sum(x.numel() * x.element_size() for x in self.tensors)


class StateForm(ABC):
    """One way to store states; it keeps nothing between calls."""

    @abstractmethod
    def specs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        """What :meth:`encode` gives for a state of that shape and dtype.

        Leading dimensions come through as they are, so a store for many states has one tensor for each spec.
        """

    @abstractmethod
    def encode(self, state: Tensor) -> Encoded:
        """The stored form of ``[..., K, V]``; NaN or infinity stays visible, and away from other states."""

    @abstractmethod
    def decode(self, encoded: Encoded, dtype: torch.dtype) -> Tensor:
        """``[..., K, V]`` in ``dtype``."""

    def round_trip(self, state: Tensor) -> Tensor:
        """What is left of a state once it was stored."""
        return self.decode(self.encode(state), state.dtype)


@dataclass(frozen=True, slots=True)
class Exact(StateForm):
    """The state in its own dtype."""

    def specs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        """One tensor."""
        return (TensorSpec(shape, dtype),)

    def encode(self, state: Tensor) -> Encoded:
        """The state itself, not a copy."""
        return Encoded((state,))

    def decode(self, encoded: Encoded, dtype: torch.dtype) -> Tensor:
        """The stored tensor itself where it has that dtype."""
        return encoded.tensors[0].to(dtype)


@dataclass(frozen=True, slots=True)
class Bf16(StateForm):
    """Eight bits of mantissa."""

    def specs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[TensorSpec, ...]:  # noqa: ARG002 - bfloat16 whatever it comes from
        """One tensor."""
        return (TensorSpec(shape, torch.bfloat16),)

    def encode(self, state: Tensor) -> Encoded:
        """Rounded to the nearest."""
        return Encoded((state.to(torch.bfloat16),))

    def decode(self, encoded: Encoded, dtype: torch.dtype) -> Tensor:
        """Widened."""
        return encoded.tensors[0].to(dtype)


@dataclass(frozen=True, slots=True)
class Int(StateForm):
    """Codes of 8 or 4 bits, and a float32 scale for each row; V must be even for 4 bits."""

    bits: IntWidth

    def specs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[TensorSpec, ...]:  # noqa: ARG002 - codes whatever they come from
        """Codes (int8, or uint8 with two codes a byte) and scales ``[..., K]``."""
        width = shape[-1] * self.bits // 8
        codes = TensorSpec((*shape[:-1], width), torch.int8 if self.bits == 8 else torch.uint8)
        return codes, TensorSpec(shape[:-1], torch.float32)

    def encode(self, state: Tensor) -> Encoded:
        """Rounded to the nearest multiple of a row's scale."""
        top = 2 ** (self.bits - 1) - 1
        scales = (state.abs().amax(dim=-1) / top).float()
        steps = state / scales.masked_fill(scales == 0.0, 1.0).to(state.dtype).unsqueeze(-1)
        # A scale that is a denormal number is a rough one; without the clamp its largest codes would wrap around.
        codes = steps.round_().clamp_(-top, top).to(torch.int8)
        return Encoded((codes if self.bits == 8 else _pack(codes), scales))

    def decode(self, encoded: Encoded, dtype: torch.dtype) -> Tensor:
        """Codes times scales."""
        codes, scales = encoded.tensors
        return (codes if self.bits == 8 else _unpack(codes)).to(dtype) * scales.to(dtype).unsqueeze(-1)


@dataclass(frozen=True, slots=True)
class Rank(StateForm):
    """The ``rank`` strongest singular directions, as factors ``[..., r, K]`` and ``[..., r, V]``.

    The left factor carries the singular values.  A direction is a row of either factor, so integer factors have a scale
    for each direction: a weak one is not rounded on the scale of a strong one.
    """

    rank: int
    factors: StateForm

    def specs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        """Those of the left factor, then those of the right one."""
        *leading, keys, values = shape
        return tuple(
            spec for width in (keys, values) for spec in self.factors.specs((*leading, self.rank, width), dtype)
        )

    def encode(self, state: Tensor) -> Encoded:
        """The truncated singular value decomposition."""
        # The decomposition of one matrix that holds NaN would fail for all of them; it stays NaN, on its own.
        sound = state.isfinite().all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
        wide = state.where(sound, 0.0).double()
        right = strongest(wide, self.rank)
        strong = (wide @ right).mT.to(state.dtype)
        parts = strong.masked_fill(~sound, torch.nan), right.mT.to(state.dtype)
        return Encoded(tuple(tensor for part in parts for tensor in self.factors.encode(part).tensors))

    def decode(self, encoded: Encoded, dtype: torch.dtype) -> Tensor:
        """The product of the factors."""
        half = len(encoded.tensors) // 2
        left = self.factors.decode(Encoded(encoded.tensors[:half]), dtype)
        return left.mT @ self.factors.decode(Encoded(encoded.tensors[half:]), dtype)


SPARE = 8
"""Directions beyond the rank that a quick decomposition looks at."""
NOTHING_LEFT = 1e-6
"""Share of a matrix outside those directions that is rounding: float32 arithmetic leaves about 1e-7."""


def strongest(matrix: Tensor, rank: int) -> Tensor:
    """The right singular vectors of the ``rank`` largest singular values, float64 ``[..., K, V]`` -> ``[..., V, r]``.

    A state that was truncated before has its old rank and one direction more for each token since.  Then a few random
    combinations of its rows span it (Halko, Martinsson and Tropp 2011), and the decomposition is one of that small
    span; a matrix that they do not span is decomposed whole.
    """
    width = rank + SPARE
    if width < matrix.shape[-1]:
        mix = torch.randn(matrix.shape[-2], width, generator=torch.Generator().manual_seed(0), dtype=matrix.dtype)
        basis = torch.linalg.qr(matrix.mT @ mix.to(matrix.device)).Q
        inside = matrix @ basis
        left_out = (matrix - inside @ basis.mT).norm(dim=(-2, -1))
        if (left_out <= NOTHING_LEFT * matrix.norm(dim=(-2, -1))).all():
            found: Tensor = basis @ _top(inside, rank)
            return found
    return _top(matrix, rank)


def _top(matrix: Tensor, rank: int) -> Tensor:
    vectors: Tensor = torch.linalg.eigh(matrix.mT @ matrix).eigenvectors
    return vectors[..., -rank:]


def _pack(codes: Tensor) -> Tensor:
    pairs = torch.unflatten((codes + 8).to(torch.uint8), -1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4)


def _unpack(packed: Tensor) -> Tensor:
    pair = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    return pair.to(torch.int8) - 8
