"""transformers behind the port: forks only where a probe finds them exact, and the same answers either way."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_backends import FULL, group, said

from evalgate.backends import hf_forks
from evalgate.backends.base import Ask, Group
from evalgate.backends.hf import HfBackend
from evalgate.backends.models import find_model
from evalgate.errors import CheckpointError, ExitCode, RefusedError
from evalgate.runner import read_arguments
from evalgate.store import RunFolder

Evalgate = Callable[..., Any]
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
LINEAR = {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 2},
    "gemma3_text": {"num_hidden_layers": 2, "head_dim": 16, "sliding_window": 32},
    "qwen3_next": {
        **LINEAR,
        "num_hidden_layers": 4,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3_5_text": {**LINEAR, "num_hidden_layers": 4},
    "olmo_hybrid": {"num_hidden_layers": 4},
    "falcon_h1": {**MAMBA, "num_hidden_layers": 2, "mamba_d_ssm": 128},
    "bailing_hybrid": {
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "dense"],
        "head_dim": 16,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "num_local_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "granitemoehybrid": {
        **MAMBA,
        "num_hidden_layers": 2,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 64,
    },
}
"""Hybrids of every kind that transformers has, and two that are none, each a random model of its own class."""


@pytest.fixture(params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small random model of one class, with the embedded models' tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(request.param, vocab_size=1812, **(ends | SMALL | MODELS[request.param]))
    model = AutoModelForCausalLM.from_config(config).float()
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(find_model("builtin:hybrid") / name, tmp_path / name)
    return tmp_path


def under(arm: str, asked: Group) -> Group:
    """The same questions under another arm."""
    return asked._replace(asks=[Ask(ask.context_end, ask.questions, arm) for ask in asked.asks])


def test_forks_say_what_whole_prompts_say(checkpoint: Path) -> None:
    """For every class, token for token."""
    backend = HfBackend(str(checkpoint), FULL, profile="full")
    asked = group(backend, ends=(50, 200, 201))
    ours, whole = backend.answer(asked), backend.answer(under("cold", asked))

    assert said(ours) == said(whole)
    assert {a.cached_tokens for a in whole} == {0}
    assert backend.arms()["default"] == "fork"
    assert [a.cached_tokens for a in ours] == [50] * 3 + [200] * 3 + [201] * 3


def not_copied(self: hf_forks.Forks, *arguments: Any) -> Any:
    """Ask on the context's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy, "deepcopy", lambda cache: cache)
        return ASK(self, *arguments)


def one_short(self: hf_forks.Forks, tokens: Any) -> None:
    """Lose a token where a context is gone on from."""
    EXTEND(self, tokens[1:] if self.tokens else tokens)
    self.tokens += bool(self.tokens) and 1


def not_copied_later(self: hf_forks.Forks, *arguments: Any) -> Any:
    """As a cache that is another object once a window is full."""
    return not_copied(self, *arguments) if self.tokens > 150 else ASK(self, *arguments)


def off_by_little(self: hf_forks.Forks, *arguments: Any) -> Any:
    """The same tokens, from logits that are not the same."""
    said, logits = ASK(self, *arguments)
    return said, logits + torch.linspace(0, 0.01, len(logits))


def no_copies(*_: Any) -> Any:
    """A cache that cannot be copied."""
    raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol")


ASK, EXTEND = hf_forks.Forks.ask, hf_forks.Forks.extend


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("ask", not_copied),
        ("ask", not_copied_later),
        ("extend", one_short),
        ("ask", off_by_little),
        ("ask", no_copies),
    ],
)
def test_forks_that_are_not_exact_are_not_taken(monkeypatch: pytest.MonkeyPatch, name: str, fault: Any) -> None:
    """A cache that is shared, that loses a token or cannot be copied: whole prompts, and the manifest says so."""
    monkeypatch.setattr(hf_forks.Forks, name, fault)
    backend = HfBackend("builtin:mostly-attention", FULL, profile="full")
    engine = backend.engine_id(512, ("default",))

    assert engine.arm_paths == {"default": "cold"}
    assert engine.effective_profile["forks"] == {"exact": False, "allowed_difference": 0.001}
    assert backend.counters().get("forks", 0) == 0


def test_arguments_go_to_the_loader(evalgate: Evalgate, tmp_path: Path) -> None:
    """Another attention is used and recorded; what transformers does not know is refused before a run begins."""
    words = ("run", "smoke", "--seeds", 1, "--model", "builtin:mostly-attention", "--backend", "hf", "--out")
    ended = evalgate(*words, tmp_path / "run", "--hf-args", "attn_implementation=eager")
    assert ended.code == ExitCode.PASS, ended.err
    run = RunFolder.open(tmp_path / "run")

    assert run.manifest().engine.effective_profile["transformers"] == {
        "attention": "eager",
        "attn_implementation": "eager",
    }
    assert run.manifest().engine.arm_paths == {"default": "fork"}
    assert run.counters()["forks"] == len(run.trials())
    other = evalgate(*words, tmp_path / "run")
    assert "transformers.attention" in other.err
    bad = evalgate(*words, tmp_path / "bad", "--hf-args", "attn_implementation=psychic")
    assert bad.code not in (ExitCode.PASS, ExitCode.BLOCK)
    assert "cannot load this checkpoint" in bad.err
    with pytest.raises(CheckpointError, match="cannot load"):
        HfBackend("builtin:hybrid", FULL, profile="full", load={"no_such_argument": "1"})
    for text in ("eager", "a=1,a=2", "=1"):
        with pytest.raises(RefusedError, match="NAME=VALUE"):
            read_arguments(text, "--hf-args")
    assert read_arguments("a=1,b=x=y", "--hf-args") == {"a": "1", "b": "x=y"}


def test_two_bytes_a_number() -> None:
    """bf16 forks too, within its rounding."""
    backend = HfBackend("builtin:hybrid", FULL, profile="full", dtype="bf16")
    assert backend.arms()["default"] == "fork"
    assert backend.engine_id(512, ("default",)).dtype == "bf16"
