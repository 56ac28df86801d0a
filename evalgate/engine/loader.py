"""A checkpoint folder: its configuration, and weights of which every one is there, once, in the right shape.

Both layouts load: the published one, which transformers also writes, and the one that transformers has in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evalgate.engine.config import ModelConfig, read_config
from evalgate.engine.weight_files import Stored, stored_tensors, weights_digest
from evalgate.engine.weight_names import Piece, Wanted, canonical, wanted_tensors
from evalgate.engine.weights import Place, Weights
from evalgate.errors import CheckpointError

NAMED = 3
"""Most left-over tensors that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Configuration, and weights under their canonical names that are read when a model takes them."""

    config: ModelConfig
    tensors: Weights
    folder: Path
    config_sha256: str

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self.tensors.numel

    @property
    def weights_sha256(self) -> str:
        """Digest of the weight files; reads every byte of them."""
        return weights_digest(self.folder)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Open a checkpoint folder and check the name and shape of every tensor; weights are read later.

    Raises CheckpointError (a file, tensor or value that is missing, left over, there twice, truncated or of another
    shape, each named) or UnsupportedError (a model or number format that the engine does not compute).
    """
    config = read_config(folder)
    found = _by_canonical_name(folder)
    places: dict[str, Place] = {}
    used: set[str] = set()
    for wanted in wanted_tensors(config):
        if wanted.name == "lm_head.weight" and config.tied and wanted.name not in found:
            continue
        names = _check(wanted, found, folder)
        used.update(names)
        places[wanted.name] = Place(wanted.shape, tuple(found[name] for name in names))
    extra = sorted(found[name].name for name in found.keys() - used)
    if extra:
        more = f" and {len(extra) - NAMED} more" if len(extra) > NAMED else ""
        raise CheckpointError(
            f"{folder}: config.json does not call for {', '.join(extra[:NAMED])}{more}; expected the weights of the "
            "model that it describes, and no others"
        )
    return Checkpoint(
        config=config,
        tensors=Weights(places),
        folder=folder,
        config_sha256=hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
    )


def _by_canonical_name(folder: Path) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    for stored in stored_tensors(folder).values():
        name = canonical(stored.name)
        if name in found:
            raise CheckpointError(f"{folder}: {found[name].name} and {stored.name} are one tensor under two names")
        found[name] = stored
    return found


def _check(wanted: Wanted, found: Mapping[str, Stored], folder: Path) -> list[str]:
    """Names under which the tensor, or all of its pieces, are there in the right shape."""
    whole = Piece(wanted.name, wanted.shape)
    parts = [whole] if wanted.name in found or not wanted.pieces else list(wanted.pieces)
    for part in parts:
        if part.name not in found:
            raise CheckpointError(f"{folder}: tensor {part.name} is missing, expected shape {list(part.shape)}")
        stored = found[part.name]
        flat = wanted.flat and stored.shape == (max(part.shape),)
        if stored.shape != part.shape and not flat:
            raise CheckpointError(
                f"{stored.file}: tensor {stored.name} has shape {list(stored.shape)}, expected {list(part.shape)}"
            )
    return [part.name for part in parts]
