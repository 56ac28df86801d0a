"""Files with the weights of a checkpoint: one, or shards with an index; their headers, and their digest.

Everything here is known without reading a weight, except the digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from evalgate.errors import CheckpointError, UnsupportedError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Number formats of safetensors that are read -> the same in torch."""

Shape = tuple[int, ...]


class Stored(NamedTuple):
    """A tensor in a file, under the name that it has there."""

    file: Path
    name: str
    shape: Shape
    dtype: torch.dtype


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint folder by its name in the files.

    Raises CheckpointError (a file that is missing, corrupt or truncated, a tensor in two shards, an index that does not
    say what the shards hold) or UnsupportedError (a number format), each naming file and tensor.
    """
    index = _index(folder)
    found: dict[str, Stored] = {}
    for file in _files(folder, index):
        for stored in _header(file):
            if stored.name in found:
                raise CheckpointError(
                    f"{folder}: tensor {stored.name} is in {found[stored.name].file.name} and in {file.name}"
                )
            if index is not None and index.get(stored.name) != file.name:
                raise CheckpointError(
                    f"{file}: holds tensor {stored.name}, which {INDEX} has in {index.get(stored.name, 'no file')}"
                )
            found[stored.name] = stored
    for name in (index or {}).keys() - found.keys():
        raise CheckpointError(f"{folder}: {INDEX} has tensor {name} in {(index or {})[name]}, which does not hold it")
    return found


def weights_digest(folder: Path) -> str:
    """Digest (sha256) of the one weight file of a checkpoint, or over the names and digests of all its shards.

    Reads every byte; raises CheckpointError where a file is missing.
    """
    digests = {}
    for file in _files(folder, _index(folder)):
        with file.open("rb") as handle:
            digests[file.name] = hashlib.file_digest(handle, "sha256").hexdigest()
    if len(digests) == 1:
        return next(iter(digests.values()))
    return hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in digests.items()).encode()).hexdigest()


def _index(folder: Path) -> Mapping[str, str] | None:
    """Tensor -> file; None where there is one file, which is what transformers takes if there are both."""
    if (folder / SINGLE).is_file():
        return None
    path = folder / INDEX
    if not path.is_file():
        raise CheckpointError(f"{folder}: neither {SINGLE} nor {INDEX} found; expected weights as safetensors")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); fetch it again") from error
    names = body.get("weight_map") if isinstance(body, dict) else None
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{path}: no weight_map found; expected one of tensor -> file")
    for name, file in names.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{path}: tensor {name} is in {file!r}; expected the name of a file beside the index")
    return names


def _files(folder: Path, index: Mapping[str, str] | None) -> list[Path]:
    if index is None:
        return [folder / SINGLE]
    names = sorted(set(index.values()))
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder}: {name} is named in {INDEX} but missing; fetch it again")
    return [folder / name for name in names]


def _header(file: Path) -> list[Stored]:
    found = []
    try:
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 - a safetensors handle is not iterable
                part = handle.get_slice(name)
                dtype = FLOATS.get(part.get_dtype())
                if dtype is None:
                    raise UnsupportedError(
                        f"{file}: tensor {name} is stored as {part.get_dtype()}, only {', '.join(FLOATS)} are read"
                    )
                found.append(Stored(file, name, tuple(part.get_shape()), dtype))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is corrupt or truncated ({error}); fetch it again") from error
    return found
