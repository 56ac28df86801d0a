"""What is measured: every kernel at the lengths and batches of the published model.

Bytes are those that must move once (inputs, outputs, states), operations those of the equations: a share says how near
the kernel is to a limit that no other one can pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from gpu_clock import Run, rotation
from gpu_inputs import KdaInputs, Latents, Maker, Shape, empty_states
from gpu_rival import Rival

from evalgate.kernels.gpu import state_codec
from evalgate.kernels.gpu.kda_chunks import Chunks
from evalgate.kernels.gpu.kda_decode import kda_decode
from evalgate.kernels.gpu.kda_prefill import kda_prefill
from evalgate.kernels.gpu.mla_decode import mla_decode
from evalgate.kernels.gpu.mla_prefill import Stretches, mla_prefill
from evalgate.kernels.gpu.rms_norm import add_rms_norm
from evalgate.kernels.gpu.short_conv import Packed, short_conv, short_conv_update

KILO = 1024


class Sizes(NamedTuple):
    """What is measured."""

    prefill: tuple[int, ...] = (8 * KILO, 32 * KILO, 128 * KILO, 512 * KILO, 1024 * KILO)
    """Tokens of one sequence."""
    decode: tuple[int, ...] = (1, 4, 16, 64, 256)
    """Rows."""
    contexts: tuple[tuple[int, int], ...] = (
        (1, 8 * KILO),
        (1, 32 * KILO),
        (1, 128 * KILO),
        (1, 512 * KILO),
        (1, 1024 * KILO),
        (16, 8 * KILO),
        (16, 128 * KILO),
    )
    """Rows, and tokens that each sees."""
    stretches: tuple[int, ...] = (8 * KILO, 128 * KILO, 1024 * KILO)
    """Tokens that the last of ``queries`` sees in a prefill."""
    queries: int = 4 * KILO
    forks: tuple[int, ...] = (1, 8)


TINY = Sizes((17,), (3,), ((2, 40),), (40,), 20, (1,))


class Case(NamedTuple):
    """One thing to measure."""

    kernel: str
    what: str
    units: float
    """Of what the rate counts, in one run."""
    unit: str
    nbytes: float
    operations: float
    room: float
    """Bytes that the inputs need on the device."""
    make: Callable[[], list[Run]]
    """The runs, on different inputs."""
    rival: Callable[[], list[Run]] | None = None
    """flash-linear-attention's runs of the same."""
    copy: Callable[[], list[Run]] | None = None
    """Plain copies of as many bytes."""
    target: str = ""
    """Name of a rule in ``gpu_speed.TARGETS``."""


def cases(make: Maker, shape: Shape, sizes: Sizes, rival: Rival | None) -> Iterator[Case]:
    """All that is measured, what matters most first."""
    for tokens in sizes.prefill:
        yield _prefill(make, shape, tokens, rival)
    for form in ("fp32", "bf16", "int8"):
        for batch in sizes.decode if form == "fp32" else sizes.decode[-1:]:
            yield _decode(make, shape, batch, form, rival)
    for batch, length in sizes.contexts:
        yield _attention(make, shape, batch, length)
    for length in sizes.stretches:
        yield _stretch(make, shape, sizes.queries, length)
    for count in sizes.forks:
        for name in ("fork", "restore"):
            for form in ("fp32",) if name == "fork" else ("fp32", "bf16", "int8"):
                yield _moved(make, shape, count, name, form)
    yield _conv(make, shape, sizes.prefill[0])
    yield _conv_update(make, shape, sizes.decode[-1])
    yield _norm(make, shape, sizes.prefill[0])


def _prefill(make: Maker, shape: Shape, tokens: int, rival: Rival | None) -> Case:
    scale, width, heads = shape.width**-0.5, shape.width, shape.heads
    nbytes = tokens * heads * (5 * width + 1) * 2.0

    def runs() -> list[Run]:
        pool, chunks = empty_states(2, shape, "fp32", make.device).codes, Chunks.of([tokens], make.device)
        slots = make.indices(1)

        def run(inputs: KdaInputs) -> Run:
            return lambda: kda_prefill(*inputs, pool, slots, chunks, scale=scale)

        return [run(KdaInputs.random(make, tokens, shape, torch.bfloat16)) for _ in range(rotation(int(nbytes)))]

    def rivals() -> list[Run]:
        assert rival is not None, "asked for only where it is installed"
        count = rotation(int(nbytes))
        return [rival.prefill(KdaInputs.random(make, tokens, shape, torch.bfloat16), shape) for _ in range(count)]

    # Per token and head, a chunk of 64 being worked on at a time.
    operations = tokens * heads * (6.0 * width**2 + 3 * 64 * width + 64**2)
    return Case(
        "kda_prefill", f"{_count(tokens)} tokens", tokens, "tokens/s", nbytes, operations,
        nbytes * rotation(int(nbytes)) + 2**30, runs, rivals if rival else None, target="prefill",
    )  # fmt: skip


def _decode(make: Maker, shape: Shape, batch: int, form: str, rival: Rival | None) -> Case:
    scale = shape.width**-0.5
    number = {"fp32": 4, "bf16": 2, "int8": 1}[form]
    state = shape.heads * shape.width * (shape.width * number + (4 if form == "int8" else 0))
    nbytes = batch * (2.0 * state + shape.heads * (5 * shape.width + 1) * 2)
    turns = rotation(int(nbytes))

    def runs() -> list[Run]:
        pool = empty_states(1 + batch * turns, shape, form, make.device)

        def run(slots: torch.Tensor, inputs: KdaInputs) -> Run:
            return lambda: kda_decode(*inputs, pool, slots, slots, scale=scale)

        order = make.order(batch * turns, start=1)
        return [run(slots, KdaInputs.random(make, batch, shape, torch.bfloat16)) for slots in order.view(turns, batch)]

    def rivals() -> list[Run]:
        assert rival is not None, "asked for only where it is installed"
        return [rival.decode(KdaInputs.random(make, batch, shape, torch.bfloat16), shape) for _ in range(turns)]

    operations = batch * shape.heads * 7.0 * shape.width**2
    with_rival = rivals if rival and form == "fp32" else None
    return Case(
        "kda_decode", f"{batch} rows, {form} states", batch, "tokens/s", nbytes, operations,
        2 * nbytes * turns, runs, with_rival, target="decode" if batch >= 16 else "",
    )  # fmt: skip


def _attention(make: Maker, shape: Shape, batch: int, length: int) -> Case:
    width = shape.latent + shape.shared
    nbytes = batch * length * width * 2.0
    turns = rotation(int(nbytes))
    sizes: dict[str, Any] = {"scale": (shape.nope + shape.shared) ** -0.5, "latent_width": shape.latent}

    def runs() -> list[Run]:
        latents = Latents.random(make, [length] * (batch * turns), shape, torch.bfloat16)
        count = torch.full((batch,), length, dtype=torch.int64, device=make.device)
        first = torch.zeros_like(count)

        def run(table: torch.Tensor) -> Run:
            q = make.normal(batch, shape.heads, width, dtype=torch.bfloat16)
            return lambda: mla_decode(q, latents.rows, table, first, count, page=shape.page, **sizes)

        return [run(table) for table in latents.table.view(turns, batch, -1)]

    operations = batch * length * shape.heads * 2.0 * (width + shape.latent)
    return Case(
        "mla_decode", f"{batch} rows of {_count(length)} tokens", batch, "tokens/s", nbytes, operations,
        nbytes * turns + 2**30, runs, target="attention",
    )  # fmt: skip


def _stretch(make: Maker, shape: Shape, queries: int, length: int) -> Case:
    width, side = shape.nope + shape.shared, shape.latent + shape.shared
    seen = queries * (length - (queries - 1) / 2)
    nbytes = length * side * 2.0 + queries * shape.heads * (width + shape.nope) * 2.0
    turns = rotation(int(nbytes))

    def runs() -> list[Run]:
        latents = Latents.random(make, [length] * turns, shape, torch.bfloat16)
        expand = make.normal(shape.heads, 2 * shape.nope, shape.latent, dtype=torch.bfloat16, scale=shape.latent**-0.5)
        stretches = Stretches(make.indices(0, queries), make.indices(length - queries), queries, range(length))

        def run(table: torch.Tensor) -> Run:
            q = make.normal(queries, shape.heads, width, dtype=torch.bfloat16)
            return lambda: mla_prefill(
                q, latents.rows, table, expand, stretches, scale=width**-0.5, page=shape.page
            )  # fmt: skip

        return [run(table) for table in latents.table.view(turns, 1, -1)]

    expanded = length * shape.heads * 2.0 * shape.latent * 2 * shape.nope
    operations = seen * shape.heads * 2.0 * (width + shape.nope) + expanded
    what = f"{_count(queries)} tokens after {_count(length - queries) if length > queries else 0}"
    return Case(
        "mla_prefill", what, queries, "tokens/s", nbytes, operations, nbytes * turns + 2**32, runs,
    )  # fmt: skip


def _moved(make: Maker, shape: Shape, count: int, name: str, form: str) -> Case:
    """States of all layers from slot to slot: ``fork`` inside the live pool, ``restore`` from where they are kept."""
    number = {"fp32": 4, "bf16": 2, "int8": 1}[form]
    live = count * shape.layers * shape.heads * shape.width**2 * 4.0
    nbytes = live + live * number / 4
    turns = min(rotation(int(nbytes)), 16)

    def runs() -> list[Run]:
        pool = empty_states(1 + 2 * count * turns, shape, "fp32", make.device, shape.layers)
        kept = pool if name == "fork" else empty_states(1 + count * turns, shape, form, make.device, shape.layers)
        targets = make.order(count * turns, start=1 + count * turns).view(turns, count)
        sources = make.order(count * turns, start=1).view(turns, count)

        def run(source: torch.Tensor, target: torch.Tensor) -> Run:
            return lambda: state_codec.decode(kept, source, pool.codes, target)

        return [run(source, target) for source, target in zip(sources, targets, strict=True)]

    def copies() -> list[Run]:
        def run() -> Run:
            source = torch.zeros(int(nbytes / 8), device=make.device)
            target = torch.empty_like(source)
            return lambda: target.copy_(source)

        return [run() for _ in range(turns)]

    what = f"{name} of {count}, all layers" + ("" if name == "fork" else f", kept in {form}")
    room = live * turns * (2 + (0 if name == "fork" else number / 4))
    return Case("state_codec", what, count, "states/s", nbytes, 0.0, room, runs, copy=copies, target="restore")


def _conv(make: Maker, shape: Shape, tokens: int) -> Case:
    nbytes = tokens * shape.channels * 2 * 2.0

    def runs() -> list[Run]:
        taps = make.normal(shape.taps, shape.channels, dtype=torch.bfloat16)
        pool = torch.zeros(2, shape.taps - 1, shape.channels, dtype=torch.bfloat16, device=make.device)
        packed, slots = Packed.of([tokens], make.device), make.indices(1)

        def run() -> Run:
            x = make.normal(tokens, shape.channels, dtype=torch.bfloat16)
            return lambda: short_conv(x, taps, pool, packed, slots)

        return [run() for _ in range(rotation(int(nbytes)))]

    operations = tokens * shape.channels * 2.0 * shape.taps
    room = nbytes * rotation(int(nbytes))
    return Case("short_conv", f"{_count(tokens)} tokens", tokens, "tokens/s", nbytes, operations, room, runs)


def _conv_update(make: Maker, shape: Shape, batch: int) -> Case:
    nbytes = batch * shape.channels * 2.0 * (2 + 2 * (shape.taps - 1))
    turns = rotation(int(nbytes))

    def runs() -> list[Run]:
        taps = make.normal(shape.taps, shape.channels, dtype=torch.bfloat16)
        pool = torch.zeros(1 + batch * turns, shape.taps - 1, shape.channels, dtype=torch.bfloat16, device=make.device)

        def run(slots: torch.Tensor) -> Run:
            x = make.normal(batch, shape.channels, dtype=torch.bfloat16)
            return lambda: short_conv_update(x, taps, pool, slots)

        return [run(slots) for slots in make.order(batch * turns, start=1).view(turns, batch)]

    operations = batch * shape.channels * 2.0 * shape.taps
    return Case("short_conv", f"{batch} rows", batch, "tokens/s", nbytes, operations, nbytes * turns, runs)


def _norm(make: Maker, shape: Shape, tokens: int) -> Case:
    nbytes = tokens * shape.hidden * 2 * 4.0

    def runs() -> list[Run]:
        weight = make.normal(shape.hidden, dtype=torch.bfloat16)

        def run() -> Run:
            x, stream = (make.normal(tokens, shape.hidden, dtype=torch.bfloat16) for _ in range(2))
            return lambda: add_rms_norm(x, stream, weight, 1e-5)

        return [run() for _ in range(rotation(int(nbytes)))]

    operations, room = tokens * shape.hidden * 5.0, nbytes * rotation(int(nbytes))
    return Case("rms_norm", f"of a sum, {_count(tokens)} tokens", tokens, "tokens/s", nbytes, operations, room, runs)


def _count(tokens: int) -> str:
    if tokens % KILO:
        return str(tokens)
    return f"{tokens // KILO}K" if tokens < KILO * KILO else f"{tokens // KILO // KILO}M"
