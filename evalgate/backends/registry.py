"""Backends by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalgate.backends.base import Backend
from evalgate.backends.settings import Sections
from evalgate.errors import RefusedError, UnknownNameError, UnsupportedError, nearest

if TYPE_CHECKING:
    from evalgate.backends.load_options import LoadOptions
    from evalgate.backends.server_options import ServerOptions

IN_PROCESS = ("native", "hf")
"""Those of the project itself that read a checkpoint."""
BACKENDS = (*IN_PROCESS, "lm-eval", "openai")


def open_backend(
    name: str,
    model: str,
    profile_sections: Sections,
    profile_name: str,
    dtype: str = "fp32",
    *,
    device: str = "cpu",
    max_tokens: int | None = None,
    server: ServerOptions | None = None,
    load: LoadOptions | None = None,
) -> Backend:
    """Open backend ``name`` on ``model`` under a profile's sections.

    ``device`` is where it computes: ``cpu``, ``cuda``, ``cpu-interpret``.  ``max_tokens`` is the most tokens of a
    prompt and its answer (None: the model's window, or what memory allows); ``server`` is for ``openai``, ``load`` for
    ``hf`` and ``lm-eval``.
    Raises UnknownNameError (backend, embedded model), CheckpointError, UnsupportedError or DoesNotFitError.
    """
    # Imported when asked for: each brings its own heavy libraries.
    if name == "native":
        from evalgate.backends.native import NativeBackend

        return NativeBackend(
            model, profile_sections, profile=profile_name, dtype=dtype, device=device, max_tokens=max_tokens
        )
    if name == "hf":
        if device == "cpu-interpret":
            raise UnsupportedError(f"device {device!r}: backend hf has no such kernels; use --backend native")
        from evalgate.backends.hf import HfBackend

        return HfBackend(
            model,
            profile_sections,
            profile=profile_name,
            dtype=dtype,
            device=device,
            max_tokens=max_tokens,
            load={} if load is None else load.hf_args,
        )
    if name == "lm-eval":
        from evalgate.backends.lm_eval_backend import LmEvalBackend

        if load is None or load.lm is None:
            raise RefusedError("--backend lm-eval needs --lm, lm-eval's name of a kind of model such as hf or vllm")
        return LmEvalBackend(model, profile_sections, load, profile=profile_name, max_tokens=max_tokens)
    if name == "openai":
        from evalgate.backends.served import ServedBackend

        if server is None:
            raise RefusedError(
                "--backend openai needs --base-url and --tokenizer of the served model, which `run` and `check` take"
            )
        return ServedBackend(model, server, max_tokens=max_tokens)
    raise UnknownNameError(f"unknown backend {name!r}{nearest(name, list(BACKENDS))}")
