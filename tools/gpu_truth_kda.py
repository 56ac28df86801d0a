"""The recurrent half against float64: Kimi Delta Attention, short convolution, forms of states, norms."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gpu_compare import EXACT, FLOAT32, Check, called, check, limit_of, name_of
from gpu_inputs import KdaInputs, Maker, Shape, empty_states
from torch import Tensor

from evalgate.kernels.gpu import state_codec
from evalgate.kernels.gpu.kda_chunks import Chunks
from evalgate.kernels.gpu.kda_decode import kda_decode
from evalgate.kernels.gpu.kda_prefill import Snapshots, kda_prefill
from evalgate.kernels.gpu.rms_norm import add_rms_norm, gated_rms_norm, rms_norm
from evalgate.kernels.gpu.short_conv import Packed, short_conv, short_conv_update
from evalgate.kernels.kda_gate import l2norm, reference_kda_gate
from evalgate.kernels.kda_prefill import CHUNK, KdaResult, reference_kda
from evalgate.kernels.rms_norm import reference_rms_norm
from evalgate.kernels.short_conv import reference_short_conv

EPS = 1e-5
CODES = {"fp32": EXACT, "bf16": 2**-8, "int8": 0.55 / 127, "int4": 0.55 / 7}
"""Half a step of the form, of the largest number of a row."""


def kda_truth(inputs: KdaInputs, at: slice, state: Tensor, scale: float, *, rows: bool) -> KdaResult:
    """Tokens ``at`` of one sequence from ``state``, or one token of each of several ``rows``, in float64."""
    q, k, v, f, beta = (x[at].double() for x in inputs[:5])
    g = reference_kda_gate(f, inputs.a_log.double(), inputs.dt_bias.double())
    time = 1 if rows else 0
    q, k, v, g, beta = (x.unsqueeze(time) for x in (l2norm(q, scale), l2norm(k), v, g, beta.sigmoid()))
    return reference_kda(q, k, v, g, beta, state.double())


def prefill(make: Maker, shape: Shape, lengths: list[int], dtype: torch.dtype) -> Iterator[Check]:
    """Packed sequences of these lengths: outputs, last states, a snapshot, and what must not change."""
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
    name, limit = name_of(dtype), limit_of(dtype)
    yield check("kda_prefill", f"{name} output", out, torch.cat(outputs), limit)
    yield check("kda_prefill", f"{name} states", pool[slots], torch.cat(states), limit)
    yield check("kda_prefill", f"{name} snapshot", kept[1:2], at_grid.final_state, limit)
    yield check("kda_prefill", f"{name} other snapshots", kept[::2].isnan(), torch.ones_like(kept[::2]), EXACT)
    others = [slot for slot in range(1, len(pool)) if slot not in slots.tolist()]
    yield check("kda_prefill", f"{name} other slots", pool[others], before[others], EXACT)


def decode(make: Maker, shape: Shape, batch: int, dtype: torch.dtype) -> Iterator[Check]:
    """One token of each row: forks of one parent, a masked row, every form of the state."""
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
        name, limit = f"{name_of(dtype)}, {form} states,", limit_of(dtype)
        yield check("kda_decode", f"{name} output", out[live], found.output[live, 0], limit)
        yield check("kda_decode", f"{name} masked row", out[~live], torch.zeros_like(out[~live]), EXACT)
        after = torch.empty_like(states)
        state_codec.decode(pool, every, after, every)
        yield check("kda_decode", f"{name} states", after[slots[live]], found.final_state[live], FLOAT32 + CODES[form])
        yield check("kda_decode", f"{name} parent", after[parents[:1]], states[parents[:1]], EXACT)


def convolution(make: Maker, shape: Shape, lengths: list[int], dtype: torch.dtype) -> Iterator[Check]:
    """Stretches of these lengths, then one token more."""
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
    name, limit = name_of(dtype), limit_of(dtype)
    yield check("short_conv", f"{name} output", out, torch.cat([one.output[0] for one in found]), limit)
    yield check("short_conv", f"{name} states", pool[filled], torch.cat([one.state for one in found]), EXACT)
    before, x = pool.clone(), x[: len(lengths)]
    out = called(lambda: short_conv_update(x, taps, pool, slots))
    one = reference_short_conv(x[:, None].double(), taps.double(), before[slots].double())
    yield check("short_conv", f"{name} update", out, one.output[:, 0], limit)
    yield check("short_conv", f"{name} update states", pool[slots], one.state, EXACT)


def codec(make: Maker, shape: Shape) -> Iterator[Check]:
    """Every form, there and back, and in place."""
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


def norm(make: Maker, shape: Shape, rows: int, dtype: torch.dtype) -> Iterator[Check]:
    """Plain, of a part of each row, gated, and of a sum that becomes the residual stream."""
    name, limit = name_of(dtype), limit_of(dtype)
    x = make.normal(rows, shape.latent + shape.shared, dtype=dtype, scale=30.0)[:, : shape.latent]
    weight = make.normal(shape.latent, dtype=dtype)
    out = called(lambda: rms_norm(x, weight, EPS))
    yield check("rms_norm", f"{name} part of rows", out, reference_rms_norm(x.double(), weight.double(), EPS), limit)
    x, gate = (make.normal(rows, shape.heads, shape.width, dtype=dtype) for _ in range(2))
    weight = make.normal(shape.width)
    out = called(lambda: gated_rms_norm(x, gate, weight, EPS))
    truth = reference_rms_norm(x.double(), weight.double(), EPS, gate.double())
    yield check("rms_norm", f"{name} gated", out, truth, limit)
    x, stream = (make.normal(rows, shape.hidden, dtype=dtype) for _ in range(2))
    weight, total = make.normal(shape.hidden, dtype=dtype), x.double() + stream.double()
    out = called(lambda: add_rms_norm(x, stream, weight, EPS))
    yield check("rms_norm", f"{name} of a sum", out, reference_rms_norm(total, weight.double(), EPS), limit)
    yield check("rms_norm", f"{name} residual stream", stream, total, limit)
