"""Compression settings that contradict each other, that a model has no place for, or that a machine cannot do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from evalgate.engine.compression import Compression
from evalgate.engine.config import ModelConfig
from evalgate.engine.llm import LLM
from evalgate.engine.loader import load_checkpoint
from evalgate.errors import UnsupportedError


@pytest.fixture(scope="module")
def config(tiny_models: dict[str, Path]) -> ModelConfig:
    """The tiny hybrid."""
    return load_checkpoint(tiny_models["hybrid"]).config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"state_rank": 16}, r"state\.rank 16: the states of this model are 16 x 16"),
        ({"state_rank": 0}, r"state\.rank 0"),
        ({"state_dtype": "int8", "codec_every": 100}, "multiple of 64"),
        ({"kv_keep": 0.0}, r"kv\.keep 0\.0"),
        ({"kv_keep": 1.5}, r"kv\.keep 1\.5"),
        ({"kv_window": 0}, r"kv\.window 0"),
        ({"kv_window": 64, "kv_keep": 0.5}, "not together"),
        ({"error_feedback": True}, r"state\.error_feedback: expected state\.dtype int8 or int4"),
        ({"error_feedback": True, "state_dtype": "bf16"}, r"state\.error_feedback: expected"),
        ({"error_feedback": True, "state_dtype": "int8", "state_rank": 2}, r"state\.error_feedback: expected"),
    ],
    ids=str,
)
def test_settings_that_cannot_act_are_refused(
    tiny_models: dict[str, Path], settings: dict[str, Any], message: str
) -> None:
    """Refused by name when the settings are made or the engine is built, before any token."""
    with pytest.raises(UnsupportedError, match=message):
        LLM.open(tiny_models["hybrid"], compression=Compression(**settings))


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"layers": ("mla",)}, {"state_dtype": "bf16"}, "state: this model has no linear-attention layer"),
        ({"layers": ("mla",)}, {"state_rank": 2}, "state: this model has no linear-attention layer"),
        ({"layers": ("mla",)}, {"snapshot_dtype": "bf16"}, "snapshot: this model has no linear-attention layer"),
        ({"layers": ("kda",)}, {"kv_dtype": "bf16"}, "kv: this model has no full-attention layer"),
        ({"layers": ("kda",)}, {"kv_window": 64}, "kv: this model has no full-attention layer"),
        ({"linear_width": 15}, {"state_dtype": "int4"}, r"state\.dtype int4: states of odd width 15"),
        ({"linear_width": 15}, {"snapshot_dtype": "int4"}, r"snapshot\.dtype int4: states of odd width 15"),
    ],
    ids=str,
)
def test_settings_must_fit_the_model(
    config: ModelConfig, changes: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    """A setting without a layer to act on, and a width that cannot be packed, are refused."""
    with pytest.raises(UnsupportedError, match=message):
        Compression(**settings).check(dataclasses.replace(config, **changes))


def test_fp8_is_refused_where_the_machine_has_none(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is allocated, with what to use instead."""
    monkeypatch.setattr(torch, "float8_e4m3fn", torch.int8)
    with pytest.raises(UnsupportedError, match=r"kv\.dtype fp8: .* use kv\.dtype int8"):
        Compression(kv_dtype="fp8").check(config)
