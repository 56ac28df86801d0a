"""`evalgate doctor`: well when all is well, and able to name each thing that is not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalgate.doctor import examine
from evalgate.errors import ExitCode


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """A copy of the package, rooms and all, to spoil; a process in this folder imports it."""
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(repository / "evalgate", tmp_path / "evalgate", ignore=ignored)
    return tmp_path


def examined(folder: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and checks of the doctor in ``folder``."""
    command = [sys.executable, "-m", "evalgate", "doctor", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    checks = {check["name"]: check for check in json.loads(ended.stdout)["checks"]}
    return ended.returncode, checks


def test_checkout_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check passes here, an embedded model answering among them, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)

    assert [finding for finding in examine() if finding.status == "failed"] == []
    assert list(tmp_path.iterdir()) == []


def test_changes_to_what_was_released_are_named(copy: Path) -> None:
    """A changed weight, policy or profile, and a suite without a lock, each fail their check and no other."""
    weights = copy / "evalgate" / "assets" / "hybrid" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    policy = copy / "evalgate" / "gates" / "policies" / "demo" / "1.0.0.yaml"
    policy.write_text(policy.read_text().replace("min: 0.90", "min: 0.50"))
    (copy / "evalgate" / "tasks" / "suites" / "smoke" / "lock.json").unlink()
    (copy / "evalgate" / "gates" / "profiles" / "full" / "lock.json").write_text("{")

    code, checks = examined(copy)
    details = {name: check["detail"] for name, check in checks.items() if check["status"] == "failed"}
    assert code == ExitCode.ERROR
    assert "hybrid/model.safetensors" in details.pop("embedded models")
    assert "demo@1.0.0 was changed after its release" in details.pop("policies")
    assert "smoke@1.0.0" in details.pop("suites")
    assert "lock.json" in details.pop("profiles")
    assert details.keys() <= {"engine"}, "the engine asks for the profile that is broken"


def test_model_that_cannot_answer_is_named(copy: Path) -> None:
    """Weights that are cut short fail the engine's check with the checkpoint's own message."""
    weights = copy / "evalgate" / "assets" / "hybrid" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])

    code, checks = examined(copy)
    assert code == ExitCode.ERROR
    assert checks["engine"]["status"] == "failed"
    assert "model.safetensors" in checks["engine"]["detail"]


def test_text_says_all_is_well(repository: Path) -> None:
    """Without --json a person gets one line for each check, and the sum."""
    command = [sys.executable, "-m", "evalgate", "doctor"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=repository)

    assert ended.returncode == ExitCode.PASS
    assert ended.stdout.splitlines()[-1] == "all is well"
