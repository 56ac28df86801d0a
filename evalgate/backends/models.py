"""Where a model's files are: an embedded model, a folder, or a hub id."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from evalgate.errors import CheckpointError, UnknownNameError, nearest

BUILTIN = "builtin:"
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def builtin_models() -> list[str]:
    """Names of the embedded models, sorted."""
    root = Path(str(files("evalgate"))) / "assets"
    return sorted(folder.name for folder in root.iterdir() if (folder / "config.json").is_file())


def find_model(name: str) -> Path:
    """Folder of a model: ``builtin:NAME``, a checkpoint folder, or a hub id (fetched when it is not in the cache).

    Raises UnknownNameError (no such embedded model) or CheckpointError (no such folder, or it cannot be fetched).
    """
    if name.startswith(BUILTIN):
        known = builtin_models()
        wanted = name.removeprefix(BUILTIN)
        if wanted not in known:
            raise UnknownNameError(f"unknown embedded model {wanted!r}{nearest(wanted, known)}")
        return Path(str(files("evalgate"))) / "assets" / wanted
    folder = Path(name)
    if folder.is_dir():
        return folder
    if folder.exists() or not HUB_ID.match(name):
        raise CheckpointError(
            f"{name}: no such checkpoint folder; expected a folder with config.json, builtin:NAME "
            f"({', '.join(builtin_models())}) or a hub id"
        )
    return _fetch(name)


def _fetch(hub_id: str) -> Path:
    # Imported here: an embedded model and a local folder need no hub.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=HUB_FILES, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        pass
    try:
        return Path(snapshot_download(hub_id, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{hub_id}: neither a folder here nor in the hub's cache, and it could not be fetched ({reason}); "
            "download it first and pass its folder"
        ) from error
