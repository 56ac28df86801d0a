"""What `evalgate state` measured of one model on one haystack: plain numbers, ready for a page, a terminal or JSON.

Decays are half-lives in tokens, everything else is a series over the same token positions. Nothing here computes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from evalgate.records import DocumentId, ModelId


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Curve(_Plain):
    """A state against position; one value for each of the record's positions."""

    norm: list[float]
    """Frobenius norm; of a layer the root mean square over its heads."""
    effective_rank: list[float]
    """exp of the entropy of the normalised singular values (Roy and Vetterli 2007); of a layer the mean over heads."""
    saturation: list[float | None]
    """1 - (growth of the norm over a stretch) / (norm of what the stretch wrote).

    0 where all that was written adds to the state, 1 where it only replaces; None where nothing was written.
    """


class HeadState(_Plain):
    """One head of one layer."""

    rest: list[float | None]
    """Half-life of each key channel in tokens with no input to its gate; None where it does not decay at all."""
    seen: list[float | None]
    """The same on the haystack's tokens."""
    curve: Curve
    kept: list[float | None]
    """Of each stretch that ends at a position: the share of what it wrote (norm) that is still there at the end."""


class LayerState(_Plain):
    """One linear-attention layer; ``layer`` is its index in the model, from 0."""

    layer: int
    heads: list[HeadState]
    curve: Curve
    kept: list[float | None]


class CodecLayer(_Plain):
    """One layer under one profile; errors are relative to the norm of the layer's uncompressed state."""

    once: list[float]
    """Error of one round trip of the uncompressed state."""
    held: list[float]
    """Error of the state as the profile holds it there, the codec having acted wherever the profile says, on the same
    inputs. The same as ``once`` for a profile that acts only where a question forks."""
    worst_head: float
    """Largest held error of any head at the last position."""
    curve: Curve
    """Of the state as the profile holds it."""


class CodecState(_Plain):
    """What one profile makes of the state."""

    profile: DocumentId
    form: str
    """What is stored and when: ``int8, every 64 tokens``."""
    accumulates: bool
    """Whether the codec acts along the stream, so that its errors can add up."""
    nbytes: int
    """Bytes of one session's recurrent state in this form."""
    layers: list[CodecLayer]


class StateRecord(_Plain):
    """The whole measurement."""

    schema_version: Literal[1] = 1
    model: ModelId
    suite: DocumentId
    seed_set: str
    seed: int
    stream: int
    length: int
    """Length of the suite whose context was streamed."""
    facts: int
    """Needles in that context."""
    key_width: int
    value_width: int
    positions: list[int]
    """Tokens that the state has seen, multiples of 64; a stretch is what lies between two of them."""
    nbytes: int
    """Bytes of one session's recurrent state, uncompressed."""
    layers: list[LayerState]
    codecs: list[CodecState]
