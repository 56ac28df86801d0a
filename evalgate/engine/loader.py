"""Weights of a checkpoint folder: every tensor that the model needs, checked by name and shape before it is read.

Published checkpoints and transformers name some tensors differently, and split what others fuse; both load.
The loader knows names and shapes, not what the tensors are for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from evalgate.engine.config import ModelConfig, read_config
from evalgate.errors import CheckpointError, UnsupportedError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})

Shape = tuple[int, ...]


class Piece(NamedTuple):
    """A tensor as a published checkpoint splits it."""

    name: str
    shape: Shape


class Wanted(NamedTuple):
    """A tensor that the model needs, and the pieces that it may come in instead."""

    name: str
    shape: Shape
    pieces: tuple[Piece, ...] = ()
    join: Literal["rows", "experts"] = "rows"
    """``rows``: pieces one under another; ``experts``: a stack over experts of such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Configuration, tensors under their canonical names (dtype as stored), and identity."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    weights_sha256: str
    config_sha256: str

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(tensor.numel() for tensor in self.tensors.values())


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint folder in the transformers layout.

    Raises CheckpointError (a file, tensor or value that is missing, extra, truncated or of another shape, each named)
    or UnsupportedError (a model or number format that the engine does not compute).
    """
    config = read_config(folder)
    files = _weight_files(folder)
    found = _headers(files)
    tensors: dict[str, Tensor] = {}
    used: set[str] = set()
    for wanted in wanted_tensors(config):
        if wanted.name == "lm_head.weight" and config.tied and wanted.name not in found:
            continue
        names = _check(wanted, found, folder)
        used.update(names)
        tensors[wanted.name] = _join([_read(found[name]) for name in names], wanted)
    extra = sorted(found[name].stored_as for name in found.keys() - used)
    if extra:
        raise CheckpointError(
            f"{folder}: {len(extra)} tensors that the configuration does not call for, the first is {extra[0]}; "
            "expected weights of the model that config.json describes"
        )
    return Checkpoint(
        config=config,
        tensors=tensors,
        weights_sha256=weights_digest(folder),
        config_sha256=hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
    )


def weights_digest(folder: Path) -> str:
    """Digest (sha256) of the one weight file of a checkpoint, or over the names and digests of all its shards."""
    digests = {}
    for file in _weight_files(folder):
        with file.open("rb") as handle:
            digests[file.name] = hashlib.file_digest(handle, "sha256").hexdigest()
    if len(digests) == 1:
        return next(iter(digests.values()))
    return hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in digests.items()).encode()).hexdigest()


def wanted_tensors(config: ModelConfig) -> Iterator[Wanted]:
    """Every tensor of the model, under transformers' in-memory names."""
    yield Wanted("model.embed_tokens.weight", (config.vocab, config.hidden))
    yield Wanted("model.norm.weight", (config.hidden,))
    yield Wanted("lm_head.weight", (config.vocab, config.hidden))
    for layer, kind in enumerate(config.layers):
        at = f"model.layers.{layer}"
        yield Wanted(f"{at}.input_layernorm.weight", (config.hidden,))
        yield Wanted(f"{at}.post_attention_layernorm.weight", (config.hidden,))
        yield from (_kda if kind == "kda" else _mla)(config, f"{at}.self_attn")
        if config.sparse[layer]:
            yield from _experts(config, f"{at}.mlp")
        else:
            yield from _mlp(f"{at}.mlp", config.hidden, config.intermediate)


def _kda(config: ModelConfig, at: str) -> Iterator[Wanted]:
    heads, width, hidden = config.linear_heads, config.linear_width, config.hidden
    channels = heads * width
    for name in ("q", "k", "v"):
        yield Wanted(f"{at}.{name}_proj.weight", (channels, hidden))
    conv = (channels, 1, config.conv_taps)
    pieces = tuple(Piece(f"{at}.{name}_conv1d.weight", conv) for name in ("q", "k", "v"))
    yield Wanted(f"{at}.conv1d.weight", (3 * channels, *conv[1:]), pieces)
    for name in ("f", "g"):
        yield Wanted(f"{at}.{name}_a_proj.weight", (width, hidden))
        yield Wanted(f"{at}.{name}_b_proj.weight", (channels, width))
    yield Wanted(f"{at}.dt_bias", (channels,))
    yield Wanted(f"{at}.A_log", (1, 1, heads, 1))
    yield Wanted(f"{at}.b_proj.weight", (heads, hidden))
    yield Wanted(f"{at}.o_norm.weight", (width,))
    yield Wanted(f"{at}.o_proj.weight", (hidden, channels))


def _mla(config: ModelConfig, at: str) -> Iterator[Wanted]:
    queries = config.heads * (config.nope + config.rope)
    if config.q_rank is None:
        yield Wanted(f"{at}.q_proj.weight", (queries, config.hidden))
    else:
        yield Wanted(f"{at}.q_a_proj.weight", (config.q_rank, config.hidden))
        yield Wanted(f"{at}.q_a_layernorm.weight", (config.q_rank,))
        yield Wanted(f"{at}.q_b_proj.weight", (queries, config.q_rank))
    yield Wanted(f"{at}.kv_a_proj_with_mqa.weight", (config.latent_row, config.hidden))
    yield Wanted(f"{at}.kv_a_layernorm.weight", (config.kv_rank,))
    yield Wanted(f"{at}.kv_b_proj.weight", (config.heads * (config.nope + config.value), config.kv_rank))
    yield Wanted(f"{at}.o_proj.weight", (config.hidden, config.heads * config.value))


def _mlp(at: str, hidden: int, intermediate: int) -> Iterator[Wanted]:
    yield Wanted(f"{at}.gate_proj.weight", (intermediate, hidden))
    yield Wanted(f"{at}.up_proj.weight", (intermediate, hidden))
    yield Wanted(f"{at}.down_proj.weight", (hidden, intermediate))


def _experts(config: ModelConfig, at: str) -> Iterator[Wanted]:
    moe = config.moe
    assert moe is not None, "a sparse layer without a mixture-of-experts configuration"
    count, width, hidden = moe.experts, moe.intermediate, config.hidden
    yield Wanted(f"{at}.gate.weight", (count, hidden))
    yield Wanted(f"{at}.gate.e_score_correction_bias", (count,))
    up = [Piece(f"{at}.experts.{e}.{part}.weight", (width, hidden)) for e in range(count) for part in ("w1", "w3")]
    down = [Piece(f"{at}.experts.{e}.w2.weight", (hidden, width)) for e in range(count)]
    yield Wanted(f"{at}.experts.gate_up_proj", (count, 2 * width, hidden), tuple(up), "experts")
    yield Wanted(f"{at}.experts.down_proj", (count, hidden, width), tuple(down), "experts")
    yield from _mlp(f"{at}.shared_experts", hidden, width * moe.shared)


class _Stored(NamedTuple):
    file: Path
    stored_as: str
    shape: Shape


def _weight_files(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.is_file():
        raise CheckpointError(f"{folder}: neither {SINGLE} nor {INDEX} found; expected weights as safetensors")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{index}: unreadable ({error}); expected a weight_map of tensor -> file") from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder}: {missing[0]} is named in {INDEX} but missing; fetch it again")
    return [folder / name for name in names]


def _headers(files: list[Path]) -> dict[str, _Stored]:
    """Canonical name -> where and how it is stored; reads no weights."""
    found: dict[str, _Stored] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 - a safetensors handle is not iterable
                    part = handle.get_slice(name)
                    if part.get_dtype() not in FLOATS:
                        raise UnsupportedError(
                            f"{file}: {name} is stored as {part.get_dtype()}; this engine reads {sorted(FLOATS)}"
                        )
                    canonical = _canonical(name)
                    if canonical in found:
                        raise CheckpointError(f"{file}: {name} is there twice (also {found[canonical].stored_as})")
                    found[canonical] = _Stored(file, name, tuple(part.get_shape()))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is corrupt or truncated ({error}); fetch it again") from error
    return found


def _canonical(name: str) -> str:
    return name.replace(".block_sparse_moe.", ".mlp.").replace(".self_attn.forget_gate.", ".self_attn.")


def _check(wanted: Wanted, found: Mapping[str, _Stored], folder: Path) -> list[str]:
    """Names under which the tensor, or all of its pieces, are there in the right shape."""
    whole = Piece(wanted.name, wanted.shape)
    parts = [whole] if wanted.name in found or not wanted.pieces else list(wanted.pieces)
    for part in parts:
        if part.name not in found:
            raise CheckpointError(f"{folder}: tensor {part.name} is missing, expected shape {list(part.shape)}")
        stored = found[part.name]
        if stored.shape != part.shape:
            raise CheckpointError(
                f"{stored.file}: tensor {stored.stored_as} has shape {list(stored.shape)}, expected {list(part.shape)}"
            )
    return [part.name for part in parts]


def _read(stored: _Stored) -> Tensor:
    try:
        with safe_open(stored.file, framework="pt") as handle:
            tensor: Tensor = handle.get_tensor(stored.stored_as)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError(f"{stored.file}: tensor {stored.stored_as} cannot be read ({error})") from error
    if not torch.isfinite(tensor).all():
        raise CheckpointError(f"{stored.file}: tensor {stored.stored_as} holds NaN or infinity; fetch it again")
    return tensor


def _join(parts: list[Tensor], wanted: Wanted) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    if wanted.join == "rows":
        return torch.cat(parts)
    return torch.stack(parts).reshape(wanted.shape)
