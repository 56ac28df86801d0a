"""A model's sessions in bytes under a profile, from its configuration alone, and what its weights take."""

from __future__ import annotations

from pathlib import Path

import torch

from evalgate.backends.models import find_model
from evalgate.backends.settings import parse_settings
from evalgate.engine.budget import SessionCost, session_cost
from evalgate.engine.config import ModelConfig, read_config
from evalgate.errors import RefusedError, UnknownNameError, nearest
from evalgate.gates.profile import load_profile

GPUS = {
    "a100-40": 40,
    "a100": 80,
    "h100": 80,
    "h200": 141,
    "b200": 180,
    "l40s": 48,
    "l4": 24,
    "rtx-3090": 24,
    "rtx-4090": 24,
    "mi300x": 192,
}
"""Name -> memory in GB (10^9 bytes), as vendors state it."""
UNITS = {"GIB": 2**30, "MIB": 2**20, "KIB": 2**10, "GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def read_model(name: str) -> tuple[Path, ModelConfig]:
    """Folder and shape of ``name``; weights need not be there.  Raises CheckpointError or UnknownNameError."""
    folder = find_model(name)
    return folder, read_config(folder)


def profile_cost(config: ModelConfig, profile: str, dtype: str) -> tuple[str, SessionCost]:
    """(reference of the profile, bytes of sessions under it).

    Raises UnknownNameError, InvalidDocumentError, TamperedError or UnsupportedError (profile) or RefusedError (dtype).
    """
    if dtype not in DTYPES:
        raise RefusedError(f"--dtype {dtype!r} is not one that is known{nearest(dtype, list(DTYPES))}")
    found = load_profile(profile)
    settings = parse_settings(found.sections, found.name, dtype)
    return found.ref, session_cost(config, settings.compression, dtype=DTYPES[dtype])


def weights_in(folder: Path) -> int:
    """Bytes of the weight files.  Raises RefusedError: there are none."""
    found = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if not found:
        raise RefusedError(f"{folder} has no weight files, so what they take must be named: --weights 98GB")
    return found


def gpu_memory(name: str) -> int:
    """Bytes of one GPU.  Raises UnknownNameError."""
    key = name.lower().replace("_", "-").replace(" ", "-")
    if key not in GPUS:
        raise UnknownNameError(
            f"unknown GPU {name!r}{nearest(key, list(GPUS))}; known: {', '.join(GPUS)}; or name its --memory"
        )
    return GPUS[key] * 10**9


def read_bytes(text: str, option: str) -> int:
    """``141GB``, ``24GiB`` or plain bytes.  Raises RefusedError for anything else, and for none."""
    upper = text.strip().upper()
    unit = next((unit for unit in UNITS if upper.endswith(unit)), "")
    try:
        found = int(float(upper.removesuffix(unit)) * UNITS.get(unit, 1))
    except (ValueError, OverflowError):
        found = 0
    if found < 1:
        raise RefusedError(f"{option} {text!r}: expected bytes such as 141GB or 24GiB")
    return found
