"""The forward kernels of flash-linear-attention's KDA at the published shapes, as launches to compare with.

They are noted while its own launchers run, on the processor and on numbers that nobody reads: every kernel that would
have started is kept with the types and constants it would have started with.  Where its tuner has several
configurations to time, the one with four warps and the fewest stages stands for all.

Only for a process of its own, such as a worker of :mod:`builds`: the package is made to believe in a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from evalgate.kernels.gpu.launch import Launch

HEADS, WIDTH, TOKENS = 32, 128, 1024
WARPS = 4
"""Of the configuration that stands for all; also what Triton starts where nothing is said."""
STAGES = 3
"""What Triton pipelines where nothing is said."""
SHARED = 232448
"""Bytes of shared memory of a block on the GPU that is played: sm_90."""
TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.bool: "i1",
}


def published() -> tuple[Launch, ...]:
    """Kernels of ``chunk_kda`` (prefill) and ``fused_recurrent_kda`` (decode), in the order in which they start."""
    with _played_gpu(), _noted() as noted, torch.inference_mode():
        from fla.ops.kda import chunk_kda, fused_recurrent_kda

        asked = {"use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True, "output_final_state": True}
        chunk_kda(**_inputs(TOKENS), **asked)
        fused_recurrent_kda(**_inputs(1), **asked)
    return tuple({launch.name: launch for launch in noted}.values())


def _inputs(tokens: int) -> dict[str, Tensor]:
    shape = (1, tokens, HEADS, WIDTH)
    q, k, v, g = (torch.zeros(shape, dtype=torch.bfloat16) for _ in range(4))
    return {
        "q": q,
        "k": k,
        "v": v,
        "g": g,
        "beta": torch.zeros(shape[:3], dtype=torch.bfloat16),
        "A_log": torch.zeros(HEADS),
        "dt_bias": torch.zeros(HEADS * WIDTH),
        "initial_state": torch.zeros(1, HEADS, WIDTH, WIDTH),
    }


@contextmanager
def _played_gpu() -> Iterator[None]:
    """A GPU as far as questions about it go."""
    facts = {"max_shared_mem": SHARED, "multiprocessor_count": 132, "warpSize": 32}
    device = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_device_interface=lambda: torch.cuda,
        utils=SimpleNamespace(get_device_properties=lambda _: facts),
    )
    with (
        patch.object(triton.runtime.driver, "_active", device),
        patch("torch.cuda.get_device_name", lambda *_: "NVIDIA H100"),
        patch("torch.cuda.get_device_capability", lambda *_: (9, 0)),
        patch("torch.cuda.device_count", lambda: 1),
        patch("torch.cuda.current_device", lambda: 0),
    ):
        yield


@contextmanager
def _noted() -> Iterator[list[Launch]]:
    """Every kernel that would start while this lasts."""
    launches: list[Launch] = []

    def tuned(tuner: Any, *args: Any, **options: Any) -> None:
        few = min(tuner.configs, key=lambda config: (config.num_warps != WARPS, config.num_stages))
        tuner.fn.run(*args, **options, **few.all_kwargs())

    def run(kernel: Any, *args: Any, **options: Any) -> None:
        launches.append(_launch(kernel, args, options))

    with patch.object(Autotuner, "run", tuned), patch.object(JITFunction, "run", run):
        from fla.ops.utils.cache import CachedAutotuner

        with patch.object(CachedAutotuner, "run", tuned):
            yield launches


def _launch(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Launch:
    given = dict(zip(kernel.arg_names, args, strict=False)) | options
    signature: dict[str, str] = {}
    constants: dict[str, object] = {}
    whole: list[str] = []
    for parameter in kernel.params:
        value = given.get(parameter.name, parameter.default)
        kind = _kind(value)
        frozen = isinstance(value, int) and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or not kind or frozen:
            constants[parameter.name] = value
            continue
        signature[parameter.name] = kind
        if isinstance(value, int) and value % 16 == 0 and not parameter.do_not_specialize:
            whole.append(parameter.name)
    return Launch(
        name=kernel.__name__,
        kernel=kernel,
        signature=signature,
        constants=constants,
        num_warps=given.get("num_warps", WARPS),
        num_stages=given.get("num_stages", STAGES),
        grid="as its launcher says",
        spill_reason="not ours",
        multiples_of_16=tuple(whole),
    )


def _kind(value: object) -> str:
    """Type of an argument as Triton spells it; empty: it can only be a constant."""
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if abs(value) < 2**31 else "i64"
    return "fp32" if isinstance(value, float) else ""
