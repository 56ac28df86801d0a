"""`--device` on the command line: what is not there is refused in one line, and what was taken is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fixtures_command import Ended

from evalgate.cli.run import chosen_device

RUN = ("run", "smoke", "--model", "builtin:hybrid", "--seeds", "1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "gpu"])
def test_device_that_is_not_there_ends_in_one_line(evalgate: Callable[..., Ended], tmp_path: Path, device: str) -> None:
    """Exit 2 before anything is written, with the remedy or the names that are known."""
    ended = evalgate(*RUN, "--device", device, "--out", tmp_path / "run")

    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith("error: no device ")
    assert ("or use --device cpu" if device == "cuda" else "known: cpu, cuda") in ended.err
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_automatic_choice_is_told(evalgate: Callable[..., Ended], tmp_path: Path) -> None:
    """On standard error, in one line and with the reason, before a run that then computes there."""
    ended = evalgate(*RUN, "--device", "auto", "--out", tmp_path / "run", "--json")

    assert ended.code == 0, ended.err
    first, *_ = ended.err.splitlines()
    assert first.startswith("device: cpu, because torch ")
    assert "Obstacle" not in first
    assert '"device": "cpu"' in (tmp_path / "run" / "manifest.json").read_text(encoding="utf-8")


def test_automatic_choice_names_the_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is one that can be used."""
    monkeypatch.setattr("evalgate.kernels.ops.cuda_obstacle", lambda: None)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H100")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    assert chosen_device("auto") == "cuda"
    assert capsys.readouterr().err == "device: cuda, NVIDIA H100, sm_90\n"
    assert chosen_device("cpu-interpret") == "cpu-interpret"
    assert capsys.readouterr().err == ""
