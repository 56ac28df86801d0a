"""Checkpoint folders whose settings are broken are refused by every backend, before a token is asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from evalgate.backends.models import builtin_models, find_model
from evalgate.backends.registry import IN_PROCESS, open_backend
from evalgate.errors import CheckpointError
from evalgate.gates.profile import load_profile

FULL = load_profile("full").sections
JSON_FILES = ("generation_config.json", "config.json", "tokenizer.json", "tokenizer_config.json")
BROKEN = {"empty": b"", "cut": b'{"eos_token_id": 2, ', "words": b"not found", "list": b"[]", "binary": b"\xff\xfe\x00"}


@pytest.fixture
def folder(tiny_models: dict[str, Path], tmp_path: Path) -> Path:
    """A checkpoint to spoil."""
    return Path(shutil.copytree(tiny_models["hybrid"], tmp_path / "model"))


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize("backend", IN_PROCESS)
def test_a_corrupt_settings_file_is_told(folder: Path, backend: str, name: str, content: str) -> None:
    """Each JSON file of a checkpoint that does not parse is an error that names the checkpoint and what to do."""
    (folder / name).write_bytes(BROKEN[content])

    with pytest.raises(CheckpointError, match=str(folder)) as told:
        open_backend(backend, str(folder), FULL, "full", max_tokens=512)
    assert "restore" in str(told.value)


@pytest.mark.parametrize("stated", ["two", [2, "two"], True, 2.0, -1, {}])
def test_ends_of_an_answer_must_be_token_ids(folder: Path, stated: object) -> None:
    """What ends an answer is a token id, several, or nothing; anything else would let answers run on."""
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": stated}), encoding="utf-8")

    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id is .* expected a token id"):
        find_model(str(folder))


@pytest.mark.parametrize("body", ['{"eos_token_id": null}', '{"eos_token_id": [2, 3]}', '{"eos_token_id": 2}', "{}"])
def test_whole_settings_are_taken(folder: Path, body: str) -> None:
    """One id, several or none are fine, and so is a folder without the file."""
    path = folder / "generation_config.json"
    path.write_text(body, encoding="utf-8")
    assert find_model(str(folder)) == folder
    path.unlink()

    assert find_model(str(folder)) == folder


def test_embedded_models_are_whole() -> None:
    """Every embedded model is found."""
    assert all(find_model(f"builtin:{name}").is_dir() for name in builtin_models())
