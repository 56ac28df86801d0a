"""Where a model's files are: an embedded model, a folder, or a hub id."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

from evalgate.errors import CheckpointError, UnknownNameError, nearest

BUILTIN = "builtin:"
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
SETTINGS = ("generation_config.json", "config.json")
"""Files that may name the tokens that end an answer; either may be missing, and none may be unreadable."""
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def builtin_models() -> list[str]:
    """Names of the embedded models, sorted."""
    root = Path(str(files("evalgate"))) / "assets"
    return sorted(folder.name for folder in root.iterdir() if (folder / "config.json").is_file())


def find_model(name: str) -> Path:
    """Folder of a model: ``builtin:NAME``, a checkpoint folder, or a hub id (fetched when it is not in the cache).

    Raises UnknownNameError (no such embedded model) or CheckpointError (no such folder, it cannot be fetched, or what
    its settings say of the end of an answer cannot be read).
    """
    folder = _find(name)
    for settings in SETTINGS:
        _check_ends(folder / settings)
    return folder


def _find(name: str) -> Path:
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


def _check_ends(path: Path) -> None:
    """Raise CheckpointError for a file that is there and does not say which tokens end an answer, or that none do.

    Without this its tokens would be missing, answers would run on, and the recall of the model would be blamed.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error}); restore it, or fetch it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: found {type(found).__name__}, expected an object of settings; restore it")
    stated = found.get("eos_token_id")
    ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ids):
        raise CheckpointError(f"{path}: eos_token_id is {stated!r}, expected a token id or a list of them; restore it")


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
