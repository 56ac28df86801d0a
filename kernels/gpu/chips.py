"""What a chip offers to the programs of a kernel, and how many warps of one kernel a multiprocessor holds at a time.

The numbers are those of the CUDA C++ Programming Guide, section "Technical Specifications per Compute Capability", and
of NVIDIA's occupancy calculator (``cuda_occupancy.h`` of the CUDA toolkit), which gives the units of allocation.
"""

from __future__ import annotations

import math
from typing import NamedTuple

WARP = 32
REGISTER_UNIT = 256
"""Registers are given to a warp in multiples of this."""
SHARED_UNIT = 128
"""Bytes: shared memory is given to a block in multiples of this."""
SHARED_RESERVED = 1024
"""Bytes of shared memory that the driver takes for every block."""
PARTITIONS = 4
"""Each multiprocessor is four, and a warp's registers lie in one of them."""
MOST_REGISTERS = 255
"""Of one thread."""
OLDEST = 80
"""Compute capability x 10 that the kernels need: bf16 matrix products and asynchronous copies came with it."""


class Chip(NamedTuple):
    """One compute capability; all sizes are those of one multiprocessor."""

    capability: int
    examples: str
    registers: int
    warps: int
    blocks: int
    shared: int
    """Bytes of shared memory."""
    shared_of_block: int
    """Bytes that one block may have of it."""
    tensor_columns: int
    """Columns of tensor memory; 0: the chip has none."""


CHIPS = {
    "sm_80": Chip(80, "A100", 65536, 64, 32, 164 * 1024, 163 * 1024, 0),
    "sm_90": Chip(90, "H100, H200", 65536, 64, 32, 228 * 1024, 227 * 1024, 0),
    "sm_100": Chip(100, "B200", 65536, 64, 32, 228 * 1024, 227 * 1024, 512),
}


class Residents(NamedTuple):
    """Warps of one kernel that a multiprocessor holds at a time, and what keeps it from holding more."""

    warps: int
    limit: str


def residents(chip: Chip, block_warps: int, registers: int, shared: int, tensor_columns: int = 0) -> Residents:
    """Count the warps: ``block_warps`` a block, ``registers`` a thread, ``shared`` bytes and tensor columns a block."""
    warp_registers = math.ceil(max(registers, 1) * WARP / REGISTER_UNIT) * REGISTER_UNIT
    block_shared = math.ceil((shared + SHARED_RESERVED) / SHARED_UNIT) * SHARED_UNIT
    blocks = {
        "warps": chip.warps // block_warps,
        "blocks": chip.blocks,
        "registers": chip.registers // PARTITIONS // warp_registers * PARTITIONS // block_warps,
        "shared memory": chip.shared // block_shared if shared <= chip.shared_of_block else 0,
        "tensor memory": chip.tensor_columns // tensor_columns if tensor_columns else chip.blocks,
    }
    limit = min(blocks, key=lambda name: blocks[name])
    return Residents(blocks[limit] * block_warps, limit)
