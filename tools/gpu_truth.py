"""Is every kernel right? Each against its equation in float64, on fresh numbers, its outputs full of NaN beforehand."""

from __future__ import annotations

from collections.abc import Iterator

import gpu_truth_kda as kda
import gpu_truth_mla as mla
import torch
from gpu_compare import Check
from gpu_inputs import Maker, Shape

from evalgate.kernels.kda_prefill import CHUNK


def checks(make: Maker, shape: Shape, *, tiny: bool) -> Iterator[Check]:
    """All comparisons, kernel by kernel."""
    for dtype in (torch.float32, torch.bfloat16):
        lengths, runs = [1, 0, 17, CHUNK, 1000, 4096], [(0, 257), (5000, 64), (20000, 1)]
        if tiny:
            # The interpreter takes a second for a chunk and head: what lengths do is tried in one dtype.
            lengths, runs = (
                ([1, 0, CHUNK + 1], [(0, 20), (19, 3)]) if dtype == torch.float32 else ([CHUNK + 1], [(3, 9)])
            )
        yield from kda.prefill(make, shape, lengths, dtype)
        yield from kda.decode(make, shape, 4 if tiny else 64, dtype)
        yield from kda.convolution(make, shape, lengths, dtype)
        yield from kda.norm(make, shape, 5 if tiny else 1001, dtype)
        yield from mla.decode(make, shape, [40, 1, 0] if tiny else [4097, 1, 63, 0, 33000], dtype)
        yield from mla.prefill(make, shape, runs, dtype)
    yield from kda.codec(make, shape)
    yield from mla.merge(make, shape)
