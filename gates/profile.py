"""Profiles: versioned compression and cache settings, as they are asked for.

A profile knows which settings make sense together, and nothing of which engine can apply them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from evalgate.records import DocumentId
from evalgate.versioned import Document, Library, parse, parse_yaml

GRID = 64
"""Tokens between two positions where a state may be compressed, stored or forked."""

UNCOMPRESSED = "full"
"""Name of the profile that changes nothing: floors may be judged on a run of it."""

GridCount = Annotated[int, Field(ge=GRID, multiple_of=GRID)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class StateProfile(_Section):
    """Recurrent state of the linear-attention layers."""

    dtype: Literal["fp32", "bf16", "int8", "int4"] = "fp32"
    scales: Literal["per-channel"] | None = None
    rank: int | None = Field(default=None, ge=1)
    """Singular directions kept of each head's state; their factors are held in ``dtype``."""
    codec_every: GridCount | None = None
    """Compress at absolute multiples of this many tokens and after each decode step; None: once, at the fork."""
    error_feedback: bool = False
    """Keep what a compression to int8 or int4 lost, and add it before the next."""

    @property
    def lossless(self) -> bool:
        """Whether nothing is compressed."""
        return self.dtype == "fp32" and self.rank is None

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        quantised = self.dtype in {"int8", "int4"}
        if quantised and self.scales is None:
            raise ValueError(f"dtype: {self.dtype} needs scales: per-channel")
        if not quantised and self.scales is not None:
            raise ValueError(f"scales: {self.scales} needs dtype: int8 or int4 (found {self.dtype})")
        if self.lossless and self.codec_every is not None:
            raise ValueError("codec_every without a codec: dtype is fp32 and rank is null; set codec_every: null")
        if self.error_feedback and not quantised:
            raise ValueError(f"error_feedback needs dtype: int8 or int4 (found {self.dtype}); set it to false")
        if self.error_feedback and self.rank is not None:
            raise ValueError(f"error_feedback and rank: {self.rank} exclude each other; keep one of them")
        return self


class SnapshotProfile(_Section):
    """States that are stored for reuse."""

    dtype: Literal["fp32", "bf16", "int8", "int4"] = "fp32"
    """int8 and int4 have scales per channel. What comes back from the store is rounded; a fork is no store."""


class KvProfile(_Section):
    """Token-linear cache of the full-attention layers."""

    dtype: Literal["auto", "fp32", "bf16", "fp16", "fp8", "int8", "int4"] = "auto"
    """``auto`` is the compute dtype; int8, int4 and fp8 have scales for each token."""
    keep: float = Field(default=1.0, gt=0, le=1)
    """Share of the context's tokens that stay: the first and the last keep/2."""
    window: int | None = Field(default=None, ge=1)
    """Only the last so many context tokens stay."""

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.window is not None and self.keep < 1:
            raise ValueError(f"window: {self.window} and keep: {self.keep} exclude each other; keep one of them")
        return self


class CacheProfile(_Section):
    """Reuse of prefixes, and the shape of the pools."""

    prefix: bool = True
    snapshot_interval: GridCount = 8192
    eviction: Literal["priority-lru-cost", "lru"] = "priority-lru-cost"
    page: int = Field(default=64, ge=1)
    prefill_chunk: GridCount = 1024


class Profile(Document):
    """A versioned profile, ``NAME/VERSION.yaml``."""

    model_config = ConfigDict(strict=True)

    state: StateProfile = StateProfile()
    snapshot: SnapshotProfile = SnapshotProfile()
    kv: KvProfile = KvProfile()
    cache: CacheProfile = CacheProfile()

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if not self.cache.prefix and self.snapshot.dtype != "fp32":
            raise ValueError(
                f"snapshot.dtype: {self.snapshot.dtype} with cache.prefix: false, which stores nothing; set "
                "snapshot.dtype: fp32 or cache.prefix: true"
            )
        return self

    @property
    def id(self) -> DocumentId:
        """Name, version and digest."""
        return DocumentId(name=self.name, version=self.version, digest=self.digest)

    @property
    def sections(self) -> dict[str, dict[str, object]]:
        """The settings by section, with every default filled in: what an engine reports as effective profile."""
        return {name: getattr(self, name).model_dump(mode="json") for name in ("state", "snapshot", "kv", "cache")}


def library() -> Library:
    """Profiles that come with evalgate."""
    return Library("profile", Path(str(files("evalgate.gates"))) / "profiles")


def load_profile(ref: str) -> Profile:
    """Load a profile by ``name``, ``name@version`` or file; raises as ``Library.load`` does."""
    return library().load(Profile, ref)


def template(name: str) -> str:
    """Return commented YAML of a new profile that compresses nothing yet.

    Raises InvalidDocumentError: ``name`` is not of a form that a profile may have.
    """
    raw = files("evalgate.gates").joinpath("templates/profile.yaml").read_text(encoding="utf-8")
    text = Template(raw).substitute(name=json.dumps(name))
    parse(Profile, parse_yaml(text, "new profile"), "new profile")
    return text
