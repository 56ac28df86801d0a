"""How a batch of packed sequences falls into chunks of 64 tokens: built once for a batch, read by every layer.

It knows lengths only.  Every sequence starts on the absolute 64-grid, so its chunks end where its grid points are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from evalgate.kernels.kda_prefill import CHUNK

SPAN = 256
"""Chunks whose intermediate results are held at one time: 0.6 GB at 32 heads of 128 in bfloat16."""


class Piece(NamedTuple):
    """Chunks of one sequence that are worked on together; a row of ``Chunks.pieces``."""

    sequence: int
    first: int
    """Its first chunk among those of the span."""
    token: int
    """Its first token among all of the batch."""
    tokens: int
    grid: int
    """Its first chunk among those of the batch, sequence after sequence."""
    unused: int = 0
    """Makes a row 48 bytes long, so that a part of the table is aligned to 16 bytes, as kernels are built for."""


class Span(NamedTuple):
    """Chunks ``table[chunks]`` and pieces ``pieces[pieces]`` that are worked on at one time."""

    chunks: slice
    pieces: slice


class Chunks(NamedTuple):
    """The chunks of a batch, in the order in which they are worked on; a span has a like part of each sequence."""

    table: Tensor
    """int64 ``[C, 2]``: first token of the chunk among all of the batch, tokens in it (1 to 64)."""
    pieces: Tensor
    """int64 ``[P, 6]``: see :class:`Piece`."""
    spans: tuple[Span, ...]
    lengths: tuple[int, ...]
    """Tokens of each sequence."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str, span: int = SPAN) -> Chunks:
        """For sequences of so many tokens, packed one after another; ``span`` bounds the memory for results between."""
        counts = [-(-length // CHUNK) for length in lengths]
        tokens, grids = _starts(lengths), _starts(counts)
        share = max(span // max(sum(count > 0 for count in counts), 1), 1)
        table: list[tuple[int, int]] = []
        pieces: list[Piece] = []
        spans: list[Span] = []
        for start in range(0, max(counts, default=0), share):
            going = [sequence for sequence, count in enumerate(counts) if start < count]
            for group in (going[i : i + span] for i in range(0, len(going), span)):
                chunk, piece = len(table), len(pieces)
                for sequence in group:
                    token = tokens[sequence] + start * CHUNK
                    left = min(lengths[sequence] - start * CHUNK, share * CHUNK)
                    pieces.append(Piece(sequence, len(table) - chunk, token, left, grids[sequence] + start))
                    table += [(token + done, min(CHUNK, left - done)) for done in range(0, left, CHUNK)]
                spans.append(Span(slice(chunk, len(table)), slice(piece, len(pieces))))
        return cls(_on_device(table, 2, device), _on_device(pieces, 6, device), tuple(spans), tuple(lengths))

    def snapshot_slots(self, wanted: Mapping[tuple[int, int], int]) -> Tensor:
        """``{(sequence, tokens of it): slot}`` -> int64 ``[C]``, the slot for each chunk in packed order, or -1.

        Raises ValueError for token counts where no whole chunk ends.
        """
        grids = _starts([-(-length // CHUNK) for length in self.lengths])
        slots = [-1] * len(self.table)
        for (sequence, tokens), slot in wanted.items():
            if tokens % CHUNK or not 0 < tokens <= self.lengths[sequence]:
                raise ValueError(
                    f"snapshot of sequence {sequence} at {tokens}: expected a multiple of {CHUNK} from {CHUNK} to"
                    f" {self.lengths[sequence]}"
                )
            slots[grids[sequence] + tokens // CHUNK - 1] = slot
        return torch.tensor(slots, dtype=torch.int64).to(self.table.device)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each begins if they lie one after another."""
    return [0, *accumulate(sizes)][:-1]


def _on_device(rows: Sequence[tuple[int, ...]], width: int, device: torch.device | str) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64).view(-1, width).to(device)
