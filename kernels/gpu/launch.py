"""How a kernel is launched at the published shapes, as data: what a compiler needs to build it without a GPU.

It knows no chip and no compiler; `aot` reads it.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Launch(NamedTuple):
    """One jitted kernel with everything that its machine code depends on.

    ``signature`` has the type of every argument that is not in ``constants``, as Triton spells it (``*bf16``, ``i32``,
    ``i64``, ``fp32``).  What a run would make a constant belongs into ``constants``: a stride of 1, a null pointer.
    """

    name: str
    """Unique among all launches: the op, and the variant where there are several (``kda_decode int8``)."""
    kernel: Any
    """The function as ``triton.jit`` returns it; Any, so that this file needs no triton."""
    signature: dict[str, str]
    """Argument name -> type of what is only known when the kernel runs."""
    constants: dict[str, object]
    """Argument name -> value of what the machine code is built for."""
    num_warps: int
    num_stages: int
    grid: str
    """How many programs are started, in words (``heads x sequences``)."""
    multiples_of_16: tuple[str, ...] = ()
    """Integer arguments that 16 divides at these shapes (strides, mostly), as a run would notice.

    Pointers need no mention: storage is aligned to 16 bytes, and a kernel is built for that.
    """
    spill_reason: str = ""
    """Why registers may be spilled; empty: they must not be."""
    chips: tuple[str, ...] = ()
    """Chips that it is started on (``sm_80``), where others run another form; empty: all."""
