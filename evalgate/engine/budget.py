"""What sessions cost in bytes, from the shape of a model and a profile alone; and how large pools may be.

A session is a fixed part (recurrent and convolution state) and latents that grow with its tokens, in whole pages.
A snapshot of its state, to go on from later, adds a fixed part again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from evalgate.engine.compression import Compression, StateCodec
from evalgate.engine.config import ModelConfig
from evalgate.engine.host_memory import available_memory
from evalgate.engine.state_pool import state_shape
from evalgate.engine.visibility import ContextSpan, Visibility, middle_hole
from evalgate.errors import DoesNotFitError
from evalgate.kernels.state_codec import TensorSpec

SHARE = 0.7
"""Part of the memory that is free at start which the pools may come to fill; the rest is for passes and others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCost:
    """Bytes that sessions of one model take under one profile."""

    kv_token: int
    """Latents of one token in all full-attention layers, with their scales."""
    state: int = 0
    """Recurrent state of all linear-attention layers in the profile's form, with rounding errors that are kept."""
    conv: int = 0
    """Convolution state of all linear-attention layers."""
    live: int = 0
    """State and convolution state as they are while a session computes: what one slot of the pool takes."""
    snapshot: int = 0
    """A stored state, in the form that the profile has for those, with its convolution state; pages are shared."""
    keep: float = 1.0
    """Share of a context's latents that stay."""
    window: int | None = None
    """Latents that the last token sees."""

    @property
    def fixed(self) -> int:
        """What a session takes whatever its length."""
        return self.state + self.conv

    @property
    def break_even(self) -> float:
        """Tokens whose latents take as much as one snapshot; infinite where tokens take nothing."""
        return self.snapshot / self.kv_token if self.kv_token else float("inf")

    def kv(self, tokens: int, page: int = 1) -> int:
        """Latents of a context of that many tokens, in whole pages of ``page`` tokens."""
        kept = tokens - len(middle_hole(ContextSpan(0, tokens), self.keep))
        passed = Visibility(window=self.window).floor(tokens - 1) // page
        return (-(-kept // page) - passed) * page * self.kv_token

    def session(self, tokens: int, snapshots: int = 0, page: int = 1) -> int:
        """A session of that many tokens, and so many snapshots of its states on the way."""
        return self.fixed + snapshots * self.snapshot + self.kv(tokens, page)

    def snapshot_per_token(self, interval: int) -> float:
        """What one snapshot every ``interval`` tokens adds to the cost of each token."""
        return self.snapshot / interval


def session_cost(
    config: ModelConfig,
    compression: Compression | None = None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    state_dtype: torch.dtype = torch.float32,
) -> SessionCost:
    """The cost of a session that computes in ``dtype`` with live states in ``state_dtype``."""
    settings = compression or Compression()
    codec, shape = StateCodec(settings), state_shape(config)
    errors = _bytes(codec.error_specs(shape))
    conv = config.kda_layers * (config.conv_taps - 1) * 3 * config.linear_heads * config.linear_width * dtype.itemsize
    return SessionCost(
        kv_token=config.mla_layers * settings.latent_codec(config, dtype).row_bytes,
        state=_bytes(codec.form.specs(shape, state_dtype)) + errors,
        conv=conv,
        live=_bytes([TensorSpec(shape, state_dtype)]) + errors + conv,
        snapshot=_bytes(settings.snapshot_form.specs(shape, state_dtype)) + errors + conv,
        keep=settings.kv_keep,
        window=settings.kv_window,
    )


def attention_only(config: ModelConfig, dtype: torch.dtype = torch.bfloat16) -> dict[str, SessionCost]:
    """The same layers with nothing but full attention, for comparison: how its keys and values are kept -> the cost.

    ``mla``: latents, as in the model's own full-attention layers; ``gqa-8``: keys and values of 8 heads; ``mha``: those
    of every head, keys with their shared part.
    """
    rows = {
        "mla": config.latent_row,
        "gqa-8": 8 * (config.nope + config.value),
        "mha": config.heads * (config.nope + config.rope + config.value),
    }
    return {name: SessionCost(kv_token=len(config.layers) * row * dtype.itemsize) for name, row in rows.items()}


def _bytes(specs: Iterable[TensorSpec]) -> int:
    return sum(spec.nbytes for spec in specs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Sizes of the pools. Their memory is only taken page by page, as sessions grow."""

    tokens: int
    """Most tokens of one session."""
    slots: int
    pages: int
    limit: str
    """What sets the limit, in words."""


def plan_pools(
    config: ModelConfig,
    compression: Compression,
    dtype: torch.dtype,
    state_dtype: torch.dtype,
    *,
    page: int,
    tokens: int | None,
    sessions: int,
    snapshots: int = 0,
    free: int,
) -> Budget:
    """Size the pools for one parent and ``sessions - 1`` forks, beside ``snapshots`` stored states, in ``free`` bytes.

    Raises DoesNotFitError when ``tokens`` is more than the model's window or than memory allows.
    """
    cost = session_cost(config, compression, dtype=dtype, state_dtype=state_dtype)
    page_bytes = page * cost.kv_token
    # Each pool has one slot more, for scratch.
    fixed = (sessions + 1) * cost.live + (snapshots + 1) * cost.snapshot
    room = int(free * SHARE) - fixed
    if room < 0:
        raise DoesNotFitError(
            f"{sessions} sessions and {snapshots} snapshots need {fixed:,} bytes of state, {free:,} bytes of memory "
            "are free; allow fewer of them"
        )
    # Forks share a context, so one session's pages and as much again must fit; where a hole is cut each has its own.
    copies = sessions if compression.kv_keep < 1.0 else min(2, sessions)
    affordable = room // page_bytes if page_bytes else -(-config.window // page) * sessions
    fit = affordable // copies * page
    most, limit = (config.window, "the model's window") if config.window <= fit else (fit, "memory")
    if tokens is not None and tokens > most:
        raise DoesNotFitError(f"{tokens} tokens asked for, at most {most} fit ({limit}); ask for shorter contexts")
    if tokens is not None:
        most, limit = tokens, "the engine's max_tokens"
    return Budget(tokens=most, slots=sessions, pages=min(affordable, (-(-most // page) + 1) * sessions), limit=limit)


def free_memory(device: torch.device) -> int:
    """Bytes that new tensors on a device may take."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
