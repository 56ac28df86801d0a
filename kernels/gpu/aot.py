"""Machine code of a launch for a chip that need not be there, and what can be read from it.

Registers, stack and shared memory are those of the cubin; the instructions are counted in the PTX that it was made
from, where each stands once however often a loop runs it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from evalgate.kernels.gpu.chips import WARP, Chip, residents
from evalgate.kernels.gpu.launch import Launch

WIDE = 16
"""Bytes that one thread loads or stores at most in one instruction of sm_80 and sm_90."""
USAGE = re.compile(r"REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:\d+ LOCAL:(?P<local>\d+)")
MATRIX = re.compile(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)\.([\w.:]+)")
KINDS = re.compile(r"\b(bf16|f16|tf32|s8|e4m3|e5m2|f64)\b|kind::(\w+)")
ACCESS = re.compile(r"\b(?P<way>ld|st)\.global[\w.:]*?(?:\.v(?P<count>\d))?\.[busf](?P<bits>\d+)\b")
COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\.global[\w.:]* \[[^\]]*\], \[[^\]]*\], (?P<bytes>0x[0-9a-f]+|\d+)")
BULK = re.compile(r"\bcp\.async\.bulk\.tensor[\w.:]*?\.(?P<way>shared::\w+\.global|global\.shared::\w+)")


class Build(NamedTuple):
    """What the machine code of a launch takes and does on one chip."""

    registers: int
    """Of one thread."""
    spilled: int
    """Bytes of stack that a thread needs for what did not fit into its registers."""
    shared: int
    """Bytes of one block."""
    tensor_columns: int
    """Columns of tensor memory of one block."""
    warps: int
    """Of this kernel that a multiprocessor holds at a time; 0: a block does not fit."""
    occupancy: float
    """``warps`` as a share of what the chip can hold of any kernel."""
    limit: str
    """What keeps a multiprocessor from holding more warps."""
    matrix: dict[str, int]
    """Matrix instruction and its operand type -> how often it stands in the code."""
    loads: dict[str, int]
    """Bytes that a thread loads at a time (or ``bulk``) -> how often."""
    stores: dict[str, int]
    """Bytes that a thread stores at a time (or ``bulk``) -> how often."""


def source(launch: Launch) -> ASTSource:
    """The launch as Triton's compiler takes it, specialised as a run would specialise it."""
    names = launch.kernel.arg_names
    known = {**launch.signature, **launch.constants}
    strange = sorted(set(known) - set(names)) or sorted(set(launch.signature) & set(launch.constants))
    assert not strange, f"{launch.name}: {strange} are no arguments of the kernel, or given twice"
    signature = {name: launch.signature.get(name, "constexpr") for name in names}
    aligned = [
        at
        for at, name in enumerate(names)
        if signature[name].startswith("*") or (name in launch.multiples_of_16 and signature[name] != "constexpr")
    ]
    return ASTSource(
        fn=launch.kernel,
        signature=signature,
        constexprs=dict(launch.constants),
        attrs={(at,): [["tt.divisibility", 16]] for at in aligned},
    )


def options(launch: Launch) -> dict[str, Any]:
    """Options of the compiler."""
    return {"num_warps": launch.num_warps, "num_stages": launch.num_stages}


def build(launch: Launch, chip: Chip) -> Build:
    """Compile ``launch`` for ``chip``; raises what Triton's compiler raises."""
    target = GPUTarget("cuda", chip.capability, WARP)
    compiled = triton.compile(source(launch), target=target, options=options(launch))
    used = _usage(compiled.asm["cubin"])
    ptx = compiled.asm["ptx"]
    columns = getattr(compiled.metadata, "tmem_size", 0) or 0
    held = residents(chip, launch.num_warps, used["registers"], compiled.metadata.shared, columns)
    return Build(
        registers=used["registers"],
        spilled=used["stack"] + used["local"],
        shared=compiled.metadata.shared,
        tensor_columns=columns,
        warps=held.warps,
        occupancy=held.warps / chip.warps,
        limit=held.limit,
        matrix=matrix_instructions(ptx),
        loads=accesses(ptx, "ld"),
        stores=accesses(ptx, "st"),
    )


def matrix_instructions(ptx: str) -> dict[str, int]:
    """``{"wgmma bf16": 4}``: matrix instructions of the PTX by their operand type."""
    found: Counter[str] = Counter()
    for name, rest in MATRIX.findall(ptx):
        kinds = [one or two for one, two in KINDS.findall(rest.replace(".", " "))]
        short = {"mma.sync": "mma", "wgmma.mma_async": "wgmma", "tcgen05.mma": "tcgen05"}[name]
        found[f"{short} {kinds[0] if kinds else 'f32'}"] += 1
    return dict(sorted(found.items()))


def accesses(ptx: str, way: str) -> dict[str, int]:
    """Loads (``ld``) or stores (``st``) of global memory in the PTX, by the bytes that a thread moves at a time."""
    widths: Counter[str] = Counter()
    for match in ACCESS.finditer(ptx):
        if match["way"] == way:
            widths[str(int(match["count"] or 1) * int(match["bits"]) // 8)] += 1
    for match in BULK.finditer(ptx):
        if match["way"].startswith("shared") == (way == "ld"):
            widths["bulk"] += 1
    if way == "ld":
        for match in COPY.finditer(ptx):
            widths[str(int(match["bytes"], 0))] += 1
    return dict(sorted(widths.items(), key=lambda item: int(item[0]) if item[0].isdigit() else 10**6))


def _usage(cubin: bytes) -> dict[str, int]:
    """Resources of the kernel in ``cubin``; of several functions the largest of each."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - Triton's own tool
    found = [{name: int(value) for name, value in match.groupdict().items()} for match in USAGE.finditer(told)]
    assert found, f"cuobjdump named no function: {told!r}"
    return {name: max(usage[name] for usage in found) for name in found[0]}
