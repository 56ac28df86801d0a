"""What a profile does to the state and to the cache, and what the engine says that it really does.

Settings are applied at their places by the engine, read back from live objects, or refused; never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evalgate.engine.config import ModelConfig
from evalgate.errors import UnsupportedError
from evalgate.kernels import state_codec
from evalgate.kernels.kda_prefill import CHUNK, AtGrid

StateDtype = Literal["fp32", "bf16", "int8", "int4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """Settings of one engine; the default compresses nothing."""

    state_dtype: StateDtype = "fp32"
    state_rank: int | None = None
    """Singular directions kept of each head's state."""
    codec_every: int | None = None
    """Compress the state at absolute multiples of this many tokens (and after each decode step); None: once, where a
    fork takes it over, then after each decode step."""
    kv_int8: bool = False
    kv_keep: float = 1.0
    """Share of a context's latents that stay: the first and the last half of that; cut out on the fork."""
    kv_window: int | None = None
    """Latents that a query sees, counted back from itself or from the end of its context."""

    def check(self, config: ModelConfig) -> None:
        """Raise UnsupportedError for a setting that cannot act on this model or on these settings."""
        state = self.state_dtype != "fp32" or self.state_rank is not None
        cache = self.kv_int8 or self.kv_keep != 1.0 or self.kv_window is not None
        if state and not config.kda_layers:
            raise UnsupportedError("state: this model has no linear-attention layer whose state could be compressed")
        if cache and not config.mla_layers:
            raise UnsupportedError("kv: this model has no full-attention layer whose cache could be compressed")
        if self.state_dtype != "fp32" and self.state_rank is not None:
            raise UnsupportedError("state: a rank and a dtype together are not supported; set one of them")
        if self.state_rank is not None and not 1 <= self.state_rank < config.linear_width:
            raise UnsupportedError(
                f"state.rank {self.state_rank}: the states of this model are {config.linear_width} x "
                f"{config.linear_width}; expected 1 to {config.linear_width - 1}"
            )
        if self.state_dtype == "int4" and config.linear_width % 2:
            raise UnsupportedError(f"state.dtype int4: states of odd width {config.linear_width} cannot be packed")
        if self.codec_every is not None and (self.codec_every < CHUNK or self.codec_every % CHUNK):
            raise UnsupportedError(f"state.codec_every {self.codec_every}: expected a multiple of {CHUNK}")
        if not 0.0 < self.kv_keep <= 1.0:
            raise UnsupportedError(f"kv.keep {self.kv_keep}: expected more than 0 and at most 1")
        if self.kv_window is not None and (self.kv_window < 1 or self.kv_keep != 1.0):
            raise UnsupportedError(f"kv.window {self.kv_window}: expected at least 1, and not together with kv.keep")


class StateCodec:
    """Rounds recurrent states ``[..., H, K, V]`` to what the compressed form can hold."""

    def __init__(self, compression: Compression) -> None:
        self.dtype = compression.state_dtype
        self.rank = compression.state_rank
        self.every = compression.codec_every

    @property
    def lossless(self) -> bool:
        """Whether nothing is compressed."""
        return self.dtype == "fp32" and self.rank is None

    def encode(self, state: Tensor) -> state_codec.Encoded:
        """The tensors that a session would keep in place of its state."""
        if self.rank is not None:
            return state_codec.encode_rank(state, self.rank)
        if self.dtype == "bf16":
            return state_codec.encode_bf16(state)
        if self.dtype == "fp32":
            return state_codec.Encoded((state,))
        return state_codec.encode_int(state, 8 if self.dtype == "int8" else 4)

    def round_trip(self, state: Tensor) -> Tensor:
        """Encode and decode."""
        if self.lossless:
            return state
        encoded = self.encode(state)
        if self.rank is not None:
            return state_codec.decode_rank(encoded, state.dtype)
        if self.dtype == "bf16":
            return state_codec.decode_bf16(encoded, state.dtype)
        return state_codec.decode_int(encoded, 8 if self.dtype == "int8" else 4, state.dtype)

    def at_grid(self, start: int, lengths: Tensor | None) -> AtGrid | None:
        """What to do with states inside a stretch that starts at token ``start`` (on the grid).

        ``lengths`` (int64 ``[B]``) are the real tokens of padded rows; a row that has ended keeps its state.
        """
        every = self.every
        if self.lossless or every is None:
            return None

        def act(tokens: int, state: Tensor) -> Tensor:
            if (start + tokens) % every:
                return state
            rounded = self.round_trip(state)
            if lengths is None:
                return rounded
            return torch.where((lengths >= tokens)[:, None, None, None], rounded, state)

        return act
