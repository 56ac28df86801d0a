"""Is every kernel right? Each against its equation in float64, on fresh numbers, its outputs full of NaN beforehand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from gpu_inputs import KdaInputs, Latents, Maker, Shape, empty_states
from torch import Tensor

from evalgate.kernels.gpu import state_codec
from evalgate.kernels.gpu.kda_chunks import Chunks
from evalgate.kernels.gpu.kda_decode import kda_decode
from evalgate.kernels.gpu.kda_prefill import Snapshots, kda_prefill
from evalgate.kernels.gpu.lse_merge import lse_merge
from evalgate.kernels.gpu.mla_decode import mla_decode
from evalgate.kernels.gpu.short_conv import Packed, short_conv, short_conv_update
from evalgate.kernels.kda_gate import l2norm, reference_kda_gate
from evalgate.kernels.kda_prefill import CHUNK, KdaResult, reference_kda
from evalgate.kernels.lse_merge import Part, reference_merge
from evalgate.kernels.short_conv import reference_short_conv

EXACT = 0.0
FLOAT32 = 2e-4
"""Sums of float32 products in another order, over a few thousand terms."""
BF16 = 3e-2
"""Tiles and outputs rounded to bfloat16 (2^-9 each), a few times on the way through a chunk."""
CODES = {"fp32": EXACT, "bf16": 2**-8, "int8": 0.55 / 127, "int4": 0.55 / 7}
"""Half a step of the form, of the largest number of a row."""


SMALL = 1 / 16
"""Numbers smaller than this share of the largest may be as wrong as those of that size: sums cancel."""


class Check(NamedTuple):
    """One comparison: the worst error as a share of its row's largest number, NaN where one was not written."""

    kernel: str
    what: str
    worst: float
    allowed: float

    @property
    def ok(self) -> bool:
        """Whether the error is a number, and allowed."""
        return self.worst <= self.allowed


def checks(make: Maker, shape: Shape, *, tiny: bool) -> Iterator[Check]:
    """All comparisons, kernel by kernel."""
    for dtype in (torch.float32, torch.bfloat16):
        lengths = [1, 0, 17, CHUNK, 1000, 4096]
        if tiny:
            lengths = [1, 0, CHUNK + 1] if dtype == torch.float32 else [CHUNK + 1]
        yield from _prefill(make, shape, lengths, dtype)
        yield from _decode(make, shape, 4 if tiny else 64, dtype)
        yield from _conv(make, shape, lengths, dtype)
        yield from _attention(make, shape, [1, 40, 0] if tiny else [1, 63, 0, 4097, 33000], dtype)
    yield from _codec(make, shape)
    yield from _merge(make, shape)


def check(kernel: str, what: str, got: Tensor, want: Tensor, allowed: float) -> Check:
    """Compare row by row, a row being the last dimension; rows are as large as ``SMALL`` of the largest at least."""
    if not want.numel():
        return Check(kernel, what, 0.0, allowed)
    error, size = (got.double() - want.double()).abs(), want.double().abs()
    least = (SMALL * size.max()).clamp(min=torch.finfo(torch.float32).tiny)
    worst = (error.amax(dim=-1) / size.amax(dim=-1).maximum(least)).max()
    return Check(kernel, what, worst.item(), allowed)


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that is not written first is NaN: torch fills it so where it is asked to be deterministic."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(mode=False)


def called(kernel: Callable[[], Tensor]) -> Tensor:
    """What a kernel puts out where memory was NaN."""
    with poisoned():
        return kernel()


def _limit(dtype: torch.dtype) -> float:
    return FLOAT32 if dtype == torch.float32 else BF16


def _name(dtype: torch.dtype) -> str:
    return "fp32" if dtype == torch.float32 else "bf16"


def kda_truth(inputs: KdaInputs, at: slice, state: Tensor, scale: float, *, rows: bool) -> KdaResult:
    """Tokens ``at`` of one sequence from ``state``, or one token of each of several ``rows``, in float64."""
    q, k, v, f, beta = (x[at].double() for x in inputs[:5])
    g = reference_kda_gate(f, inputs.a_log.double(), inputs.dt_bias.double())
    time = 1 if rows else 0
    q, k, v, g, beta = (x.unsqueeze(time) for x in (l2norm(q, scale), l2norm(k), v, g, beta.sigmoid()))
    return reference_kda(q, k, v, g, beta, state.double())


def _prefill(make: Maker, shape: Shape, lengths: list[int], dtype: torch.dtype) -> Iterator[Check]:
    inputs = KdaInputs.random(make, sum(lengths), shape, dtype)
    scale = shape.width**-0.5
    pool = make.normal(len(lengths) + 2, shape.heads, shape.width, shape.width)
    pool[0] = torch.nan
    slots = make.order(len(lengths) + 1, start=1)[: len(lengths)]
    kept = pool.new_full((3, *pool.shape[1:]), torch.nan)
    last = len(lengths) - 1
    grid = lengths[last] // CHUNK * CHUNK
    chunks = Chunks.of(lengths, make.device)
    snapshots = Snapshots(kept, chunks.snapshot_slots({(last, grid): 1}))
    before = pool.clone()
    out = called(lambda: kda_prefill(*inputs, pool, slots, chunks, scale=scale, snapshots=snapshots))

    outputs, states, start = [], [], 0
    for length, slot in zip(lengths, slots.tolist(), strict=True):
        found = kda_truth(inputs, slice(start, start + length), before[slot : slot + 1], scale, rows=False)
        outputs.append(found.output[0])
        states.append(found.final_state)
        start += length
    at_grid = kda_truth(
        inputs, slice(start - lengths[last], start - lengths[last] + grid), before[slots[last:]], scale, rows=False
    )
    name, limit = _name(dtype), _limit(dtype)
    yield check("kda_prefill", f"{name} output", out, torch.cat(outputs), limit)
    yield check("kda_prefill", f"{name} states", pool[slots], torch.cat(states), limit)
    yield check("kda_prefill", f"{name} snapshot", kept[1:2], at_grid.final_state, limit)
    yield check("kda_prefill", f"{name} other snapshots", kept[::2].isnan(), torch.ones_like(kept[::2]), EXACT)
    others = [slot for slot in range(1, len(pool)) if slot not in slots.tolist()]
    yield check("kda_prefill", f"{name} other slots", pool[others], before[others], EXACT)


def _decode(make: Maker, shape: Shape, batch: int, dtype: torch.dtype) -> Iterator[Check]:
    inputs = KdaInputs.random(make, batch, shape, dtype)
    scale = shape.width**-0.5
    slots = make.order(batch, start=1)
    parents = slots.clone()
    parents[1] = parents[0] = batch + 1  # two forks of one parent
    slots[2] = parents[2] = -1
    live = torch.arange(batch, device=make.device) != 2
    for form in ("fp32", "bf16", "int8"):
        states = make.normal(batch + 2, shape.heads, shape.width, shape.width)
        pool = empty_states(batch + 2, shape, form, make.device)
        every = make.indices(*range(batch + 2))
        state_codec.encode(states, every, pool, every)
        state_codec.decode(pool, every, states, every)
        (pool.codes if pool.scales is None else pool.scales)[0] = torch.nan
        out = called(lambda pool=pool: kda_decode(*inputs, pool, parents, slots, scale=scale))  # type: ignore[misc]  # bound
        found = kda_truth(inputs, slice(None), states[parents], scale, rows=True)
        name, limit = f"{_name(dtype)}, {form} states,", _limit(dtype)
        yield check("kda_decode", f"{name} output", out[live], found.output[live, 0], limit)
        yield check("kda_decode", f"{name} masked row", out[~live], torch.zeros_like(out[~live]), EXACT)
        after = torch.empty_like(states)
        state_codec.decode(pool, every, after, every)
        yield check("kda_decode", f"{name} states", after[slots[live]], found.final_state[live], FLOAT32 + CODES[form])
        yield check("kda_decode", f"{name} parent", after[parents[:1]], states[parents[:1]], EXACT)


def _conv(make: Maker, shape: Shape, lengths: list[int], dtype: torch.dtype) -> Iterator[Check]:
    x = make.normal(sum(lengths), shape.channels, dtype=dtype)
    taps = make.normal(shape.taps, shape.channels, dtype=dtype)
    pool = make.normal(len(lengths) + 1, shape.taps - 1, shape.channels, dtype=dtype)
    pool[0] = torch.nan
    slots, before = make.order(len(lengths), start=1), pool.clone()
    out = called(lambda: short_conv(x, taps, pool, Packed.of(lengths, make.device), slots))
    parts = torch.split(x.double(), lengths)
    found = [
        reference_short_conv(part[None], taps.double(), before[slot : slot + 1].double())
        for part, slot in zip(parts, slots.tolist(), strict=True)
        if len(part)
    ]
    filled = slots[torch.tensor([bool(length) for length in lengths], device=make.device)]
    name, limit = _name(dtype), _limit(dtype)
    yield check("short_conv", f"{name} output", out, torch.cat([one.output[0] for one in found]), limit)
    yield check("short_conv", f"{name} states", pool[filled], torch.cat([one.state for one in found]), EXACT)
    before, x = pool.clone(), x[: len(lengths)]
    out = called(lambda: short_conv_update(x, taps, pool, slots))
    one = reference_short_conv(x[:, None].double(), taps.double(), before[slots].double())
    yield check("short_conv", f"{name} update", out, one.output[:, 0], limit)
    yield check("short_conv", f"{name} update states", pool[slots], one.state, EXACT)


def _codec(make: Maker, shape: Shape) -> Iterator[Check]:
    states = make.normal(3, shape.heads, shape.width, shape.width, scale=10.0)
    every = make.indices(0, 1, 2)
    for form, allowed in CODES.items():
        stored = empty_states(3, shape, form, make.device)
        state_codec.encode(states, every, stored, every.flip(0))
        back = torch.full_like(states, torch.nan)
        state_codec.decode(stored, every.flip(0), back, every)
        yield check("state_codec", f"{form} there and back", back, states, allowed)
        if form != "fp32":
            again = states.clone()
            state_codec.round_trip(again, every, {"bf16": 16, "int8": 8, "int4": 4}[form])
            yield check("state_codec", f"{form} in place", again, back, EXACT)


def attention_truth(q: Tensor, rows: list[Tensor], latent: int, scale: float) -> Part:
    """``q`` ``[B, H, L + R]`` over ``rows[b]`` ``[S_b, L + R]``, in float64."""
    outputs, sums = [], []
    for row, keys in enumerate(rows):
        scores = scale * q[row].double() @ keys.double().T
        lse = scores.logsumexp(dim=-1)
        weights = (scores - torch.where(lse.isfinite(), lse, 0.0)[:, None]).exp()
        outputs.append(weights @ keys[:, :latent].double())
        sums.append(lse)
    return Part(torch.stack(outputs), torch.stack(sums))


def _attention(make: Maker, shape: Shape, lengths: list[int], dtype: torch.dtype) -> Iterator[Check]:
    latents = Latents.random(make, lengths, shape, dtype)
    width, scale = shape.latent + shape.shared, (shape.nope + shape.shared) ** -0.5
    # Large enough that a few keys weigh nearly all, as in a model: a mean over all keys hides what is wrong.
    q = make.normal(len(lengths), shape.heads, width, dtype=dtype, scale=2.0)
    count = make.indices(*lengths)
    first = count // 3
    part: list[Part] = []
    sizes: dict[str, Any] = {"scale": scale, "latent_width": shape.latent, "page": shape.page}

    def run() -> Tensor:
        part.append(mla_decode(q, latents.rows, latents.table, first, count - first, **sizes))
        return part[0].output

    out = called(run)
    pages = latents.rows.view(-1, shape.page, width)
    found = [pages[table.clamp(min=0)].flatten(0, 1) for table in latents.table]
    seen = [rows[length // 3 : length] for rows, length in zip(found, lengths, strict=True)]
    truth = attention_truth(q, seen, shape.latent, scale)
    name, limit = _name(dtype), _limit(dtype)
    there = count > 0
    yield check("mla_decode", f"{name} output", out, truth.output, limit)
    yield check("mla_decode", f"{name} log sums", part[0].lse[there], truth.lse[there], FLOAT32)
    yield check("mla_decode", f"{name} empty row", part[0].lse[~there].isneginf(), truth.lse[~there].isneginf(), EXACT)


def _merge(make: Maker, shape: Shape) -> Iterator[Check]:
    parts = 11
    output = make.normal(5, shape.heads, parts, shape.latent)
    lse = make.normal(5, shape.heads, parts, scale=5.0)
    lse[:, :, 2] = -torch.inf
    truth = reference_merge([Part(output[:, :, at].double(), lse[:, :, at].double()) for at in range(parts)])
    output[:, :, 2] = torch.nan  # of a part that saw nothing, the mean is not read
    found: list[Part] = []

    def run() -> Tensor:
        found.append(lse_merge(Part(output, lse), torch.float32))
        return found[0].output

    yield check("lse_merge", "output", called(run), truth.output, FLOAT32)
    yield check("lse_merge", "log sums", found[0].lse, truth.lse, FLOAT32)
