"""What a profile does to the state and to the cache, and what the engine says that it really does.

Settings are applied at their places by the engine, read back from live objects, or refused; never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from evalgate.engine.config import ModelConfig
from evalgate.errors import UnsupportedError
from evalgate.kernels.kda_prefill import CHUNK, AtGrid
from evalgate.kernels.latent_codec import FloatLatents, Fp8Latents, Int8Latents, LatentCodec, machine_has_fp8
from evalgate.kernels.state_codec import Bf16, Encoded, Exact, Int, Rank, StateForm, TensorSpec

StateDtype = Literal["fp32", "bf16", "int8", "int4"]
KvDtype = Literal["auto", "fp32", "bf16", "int8", "fp8"]

STATE_FORMS: dict[StateDtype, StateForm] = {"fp32": Exact(), "bf16": Bf16(), "int8": Int(8), "int4": Int(4)}
"""``fp32`` leaves a state as it is: float64 where the engine computes in that."""
ERROR_FORM = Int(4)
"""How the last rounding error is kept, with scales of its own; on trained states 8 or 32 bits came out no better."""
KV_FLOATS: dict[KvDtype, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """Settings of one engine; the default compresses nothing.

    Raises UnsupportedError for settings that contradict each other, whatever the model.
    """

    state_dtype: StateDtype = "fp32"
    state_rank: int | None = None
    """Singular directions kept of each head's state; their two factors are held in ``state_dtype``."""
    codec_every: int | None = None
    """Compress the state at absolute multiples of this many tokens (and after each decode step); None: once, where a
    fork takes it over, then after each decode step."""
    error_feedback: bool = False
    """Add the rounding error of one compression to the state before the next.  It does not decay in between: it helps
    channels that outlive ``codec_every``; in those that forget within it, it is noise of at most half a step."""
    snapshot_dtype: StateDtype = "fp32"
    """Dtype of states that are stored for later requests."""
    kv_dtype: KvDtype = "auto"
    """Dtype of stored latents; auto: the compute dtype."""
    kv_keep: float = 1.0
    """Share of a context's latents that stay: the first and the last half of that; cut out on the fork."""
    kv_window: int | None = None
    """Latents that a query sees, counted back from itself or from the end of its context."""

    def __post_init__(self) -> None:
        if self.error_feedback and (self.state_dtype not in {"int8", "int4"} or self.state_rank is not None):
            raise UnsupportedError("state.error_feedback: expected state.dtype int8 or int4, and no state.rank")
        if self.codec_every is not None and (self.codec_every < CHUNK or self.codec_every % CHUNK):
            raise UnsupportedError(f"state.codec_every {self.codec_every}: expected a multiple of {CHUNK}")
        if not 0.0 < self.kv_keep <= 1.0:
            raise UnsupportedError(f"kv.keep {self.kv_keep}: expected more than 0 and at most 1")
        if self.kv_window is not None and (self.kv_window < 1 or self.kv_keep != 1.0):
            raise UnsupportedError(f"kv.window {self.kv_window}: expected at least 1, and not together with kv.keep")

    def check(self, config: ModelConfig) -> None:
        """Raise UnsupportedError for a setting that cannot act on this model or on this machine."""
        state = self.state_dtype != "fp32" or self.state_rank is not None
        cache = self.kv_dtype != "auto" or self.kv_keep != 1.0 or self.kv_window is not None
        width = config.linear_width
        if state and not config.kda_layers:
            raise UnsupportedError("state: this model has no linear-attention layer whose state could be compressed")
        if self.snapshot_dtype != "fp32" and not config.kda_layers:
            raise UnsupportedError("snapshot: this model has no linear-attention layer whose state could be stored")
        if cache and not config.mla_layers:
            raise UnsupportedError("kv: this model has no full-attention layer whose cache could be compressed")
        if self.state_rank is not None and not 1 <= self.state_rank < width:
            raise UnsupportedError(
                f"state.rank {self.state_rank}: the states of this model are {width} x {width}; "
                f"expected 1 to {width - 1}"
            )
        for name, dtype in (("state", self.state_dtype), ("snapshot", self.snapshot_dtype)):
            if dtype == "int4" and width % 2:
                raise UnsupportedError(f"{name}.dtype int4: states of odd width {width} cannot be packed")
        if self.kv_dtype == "fp8" and not machine_has_fp8():
            raise UnsupportedError("kv.dtype fp8: torch cannot store float8_e4m3fn on this machine; use kv.dtype int8")

    @property
    def snapshot_form(self) -> StateForm:
        """How states are stored for later requests."""
        return STATE_FORMS[self.snapshot_dtype]

    def latent_codec(self, config: ModelConfig, compute: torch.dtype) -> LatentCodec:
        """How latents are stored by an engine that computes in ``compute``."""
        if self.kv_dtype == "int8":
            return Int8Latents(config.kv_rank, config.rope, compute)
        if self.kv_dtype == "fp8":
            return Fp8Latents(config.kv_rank, config.rope, compute)
        return FloatLatents(config.latent_row, KV_FLOATS.get(self.kv_dtype, compute), compute)


class Rounded(NamedTuple):
    """A state as its compressed form can hold it, and what that lost; an empty error without error feedback."""

    state: Tensor
    error: Encoded


class StateCodec:
    """Rounds recurrent states ``[..., H, K, V]`` to what the compressed form can hold."""

    def __init__(self, compression: Compression) -> None:
        self.dtype: StateDtype = compression.state_dtype
        self.rank = compression.state_rank
        self.every = compression.codec_every
        self.feedback = compression.error_feedback

    @property
    def form(self) -> StateForm:
        """How a session would hold its state."""
        form = STATE_FORMS[self.dtype]
        return form if self.rank is None else Rank(self.rank, form)

    @property
    def lossless(self) -> bool:
        """Whether nothing is compressed."""
        return self.dtype == "fp32" and self.rank is None

    @property
    def recordable(self) -> bool:
        """Whether rounding never waits for the device; a decomposition does, to see whether it converged."""
        return self.rank is None

    def encode(self, state: Tensor) -> Encoded:
        """The tensors that a session would keep in place of its state."""
        return self.form.encode(state)

    def round_trip(self, state: Tensor) -> Tensor:
        """Encode and decode."""
        return self.form.round_trip(state)

    def error_specs(self, shape: tuple[int, ...]) -> tuple[TensorSpec, ...]:
        """The tensors in which the error of a state ``[..., H, K, V]`` is kept; none without error feedback.

        Zeros are no error: what a new session begins with.
        """
        return ERROR_FORM.specs(shape, torch.float32) if self.feedback else ()

    def round_with_error(self, state: Tensor, error: Encoded) -> Rounded:
        """Encode and decode ``state`` plus the ``error`` of last time; a NaN in either ends up in both."""
        if not self.feedback:
            return Rounded(self.round_trip(state), error)
        wanted = state + ERROR_FORM.decode(error, state.dtype)
        kept = self.round_trip(wanted)
        return Rounded(kept, ERROR_FORM.encode(wanted - kept))

    def round_slots(self, states: Tensor, errors: tuple[Tensor, ...], slots: Tensor | slice) -> None:
        """Round some slots of a pool in place: ``states`` is ``[layers, slots, H, K, V]``, ``errors`` as specified."""
        rounded = self.round_with_error(states[:, slots], Encoded(tuple(error[:, slots] for error in errors)))
        states[:, slots] = rounded.state
        for error, new in zip(errors, rounded.error.tensors, strict=True):
            error[:, slots] = new

    def at_grid(self, start: int, lengths: Tensor | None, errors: list[Tensor]) -> AtGrid | None:
        """What to do with states inside a stretch that starts at token ``start`` (on the grid).

        ``lengths`` (int64 ``[B]``) are the real tokens of padded rows; a row that has ended keeps its state.
        ``errors`` are one layer's errors of these rows, ``[B, ...]`` as specified; they are replaced in the list.
        """
        every = self.every
        if self.lossless or every is None:
            return None

        def act(tokens: int, state: Tensor) -> Tensor:
            if (start + tokens) % every:
                return state
            rounded = self.round_with_error(state, Encoded(tuple(errors)))
            old, new = [state, *errors], [rounded.state, *rounded.error.tensors]
            if lengths is not None:
                real = lengths >= tokens
                new = [torch.where(real.view(-1, *[1] * (a.dim() - 1)), b, a) for a, b in zip(old, new, strict=True)]
            errors[:] = new[1:]
            return new[0]

        return act
