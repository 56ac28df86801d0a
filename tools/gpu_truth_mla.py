"""The attention half against float64: latents in pages, prefixes that rows share, and the joining of parts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from gpu_compare import EXACT, FLOAT32, Check, called, check, limit_of, name_of
from gpu_inputs import Latents, Maker, Shape
from torch import Tensor

from evalgate.kernels.gpu.lse_merge import lse_merge
from evalgate.kernels.gpu.mla_decode import Shared, mla_decode
from evalgate.kernels.gpu.mla_prefill import Stretches, mla_prefill
from evalgate.kernels.latent_codec import Fp8Latents, Int8Latents, ScaledLatents
from evalgate.kernels.lse_merge import Part, reference_merge

PEAKED = 2.0
"""Size of queries at which a few keys weigh nearly all, as in a model: a mean over all keys hides what is wrong."""


class Held(NamedTuple):
    """Latents as a kernel reads them, and as they are."""

    codes: Tensor
    scales: Tensor | None
    table: Tensor
    pages: Tensor
    """float64 ``[pages, page, L + R]``: what the codes stand for."""

    def seen(self, row: int, first: int, stop: int) -> Tensor:
        """``[S, L + R]`` of a row's positions."""
        return self.pages[self.table[row].clamp(min=0)].flatten(0, 1)[first:stop]


def held(make: Maker, lengths: list[int], shape: Shape, dtype: torch.dtype, form: type[ScaledLatents] | None) -> Held:
    """Random latents for rows of these lengths, stored in ``dtype`` or in 8 bits; page 0 is NaN and nobody's."""
    latents = Latents.random(make, lengths, shape, dtype)
    codes, scales, numbers = latents.rows, None, latents.rows
    if form is not None:
        # The codecs work where their tables are: on the processor.
        codec = form(shape.latent, shape.shared, torch.float32)
        columns = codec.encode(latents.rows.nan_to_num().cpu())
        numbers = codec.decode(columns).to(make.device)
        codes, scales = (column.to(make.device) for column in columns)
        scales[: shape.page] = torch.nan
    return Held(codes, scales, latents.table, numbers.double().view(-1, shape.page, numbers.shape[1]))


def truth(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Part:
    """``q`` ``[H, C]`` over keys ``[H or 1, S, C]`` and values ``[H or 1, S, V]``, float64."""
    scores = scale * (keys @ q.unsqueeze(-1)).squeeze(-1)
    lse = scores.logsumexp(dim=-1)
    weights = (scores - torch.where(lse.isfinite(), lse, 0.0)[:, None]).exp()
    return Part((weights.unsqueeze(-2) @ values).squeeze(-2), lse)


def decode(make: Maker, shape: Shape, lengths: list[int], dtype: torch.dtype) -> Iterator[Check]:
    """One query of each row over a part of its latents: as they are, in 8 bits, and behind a prefix that rows share."""
    width = shape.latent + shape.shared
    q = make.normal(len(lengths), shape.heads, width, dtype=dtype, scale=PEAKED)
    sizes: dict[str, Any] = {"scale": (shape.nope + shape.shared) ** -0.5, "latent_width": shape.latent}
    count = make.indices(*lengths)
    first = count // 3
    for form in (None, Int8Latents, Fp8Latents):
        kept = held(make, lengths, shape, dtype, form)
        last = make.indices(len(lengths) - 1)
        prefix = Shared(kept.table[:1], last * 0, count[:1], make.indices(1, len(lengths)))
        for shared in (None, prefix) if form is None else (None,):
            seen: dict[str, Any] = {"scales": kept.scales, "shared": shared, "page": shape.page}
            launch = partial(mla_decode, q, kept.codes, kept.table, first, count - first, **sizes, **seen)
            part = called(launch)
            rows = [kept.seen(row, length // 3, length) for row, length in enumerate(lengths)]
            if shared is not None:
                rows[1:] = [torch.cat([kept.seen(0, 0, lengths[0]), row]) for row in rows[1:]]
            found = [
                truth(one.double(), row[None], row[None, :, : shape.latent], sizes["scale"])
                for one, row in zip(q, rows, strict=True)
            ]
            own = "shared prefix" if shared else "own latents"
            name = f"{name_of(dtype)}, {own if form is None else form.__name__}"
            output, lse = torch.stack([one.output for one in found]), torch.stack([one.lse for one in found])
            some = lse.isfinite()
            yield check("mla_decode", f"{name}, output", part.output, output, limit_of(dtype))
            yield check("mla_decode", f"{name}, log sums", part.lse[some], lse[some], FLOAT32)
            yield check("mla_decode", f"{name}, empty rows", part.lse.isneginf(), lse.isneginf(), EXACT)


def prefill(make: Maker, shape: Shape, runs: list[tuple[int, int]], dtype: torch.dtype) -> Iterator[Check]:
    """Runs of (first position, queries), each after its own past."""
    ends, tokens = [start + count for start, count in runs], sum(count for _, count in runs)
    kept = held(make, ends, shape, dtype, None)
    q = make.normal(tokens, shape.heads, shape.nope + shape.shared, dtype=dtype, scale=PEAKED)
    expand = make.normal(shape.heads, 2 * shape.nope, shape.latent, dtype=dtype, scale=shape.latent**-0.5)
    offsets = [sum(count for _, count in runs[:at]) for at in range(len(runs) + 1)]
    starts = make.indices(*(start for start, _ in runs))
    longest = max(count for _, count in runs)
    stretches = Stretches(make.indices(*offsets), starts, longest, range(max(ends)))
    scale = (shape.nope + shape.shared) ** -0.5
    part = called(lambda: mla_prefill(q, kept.codes, kept.table, expand, stretches, scale=scale, page=shape.page))
    outputs, sums = [], []
    for row, (start, count) in enumerate(runs):
        keys, values = _expanded(kept.seen(row, 0, ends[row]), expand.double(), shape)
        for at in range(count):
            stop = start + at + 1
            one = truth(q[offsets[row] + at].double(), keys[:, :stop], values[:, :stop], scale)
            outputs.append(one.output)
            sums.append(one.lse)
    name = name_of(dtype)
    yield check("mla_prefill", f"{name} output", part.output, torch.stack(outputs), limit_of(dtype))
    # Keys are rounded once they are expanded, and a log sum errs as its largest scores do.
    yield check("mla_prefill", f"{name} log sums", part.lse, torch.stack(sums), limit_of(dtype))


def _expanded(latents: Tensor, expand: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Keys ``[H, S, N + R]`` and values ``[H, S, V]`` of ``[S, L + R]``."""
    wide = torch.einsum("hnl,sl->hsn", expand, latents[:, : shape.latent])
    side = latents[None, :, shape.latent :].expand(shape.heads, -1, -1)
    return torch.cat([wide[..., : shape.nope], side], dim=-1), wide[..., shape.nope :]


def merge(make: Maker, shape: Shape) -> Iterator[Check]:
    """Parts of any weight, one of which saw nothing."""
    parts = 11
    output = make.normal(5, shape.heads, parts, shape.latent)
    lse = make.normal(5, shape.heads, parts, scale=5.0)
    lse[:, :, 2] = -torch.inf
    want = reference_merge([Part(output[:, :, at].double(), lse[:, :, at].double()) for at in range(parts)])
    output[:, :, 2] = torch.nan  # of a part that saw nothing, the mean is not read
    found = called(lambda: lse_merge(Part(output, lse), torch.float32))
    yield check("lse_merge", "output", found.output, want.output, FLOAT32)
    yield check("lse_merge", "log sums", found.lse, want.lse, FLOAT32)
