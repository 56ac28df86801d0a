"""lm-eval's models behind the port: the engine's own answers, and no prompt that was cut in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_backends import FULL, group

from evalgate.backends.lm_eval_backend import LmEvalBackend
from evalgate.backends.load_options import LoadOptions
from evalgate.errors import CheckpointError, DoesNotFitError, ExitCode, UnsupportedError
from evalgate.gates.profile import load_profile
from evalgate.store import RunFolder

Evalgate = Callable[..., Any]
HF = LoadOptions(lm="hf", lm_args={"device": "cpu", "dtype": "float32", "max_length": "4096"})


@pytest.mark.filterwarnings("ignore")
def test_trial_by_trial_as_the_engine(evalgate: Evalgate, tmp_path: Path) -> None:
    """The same prompts, texts and outcomes; what was asked of lm-eval is in the manifest."""
    words = ("run", "smoke", "--seeds", 1, "--model", "builtin:hybrid", "--answers", "keep", "--out")
    there = ("--backend", "lm-eval", "--lm", "hf", "--lm-args", "device=cpu,dtype=float32,max_length=4096")
    assert evalgate(*words, tmp_path / "native").code == ExitCode.PASS
    ended = evalgate(*words, tmp_path / "other", *there)
    assert ended.code == ExitCode.PASS, ended.err
    ours, theirs = (RunFolder.open(tmp_path / name) for name in ("native", "other"))

    fields = ("trial_id", "prompt_sha256", "prompt_tokens", "answer", "outcome", "error")
    mine, other = ([[getattr(trial, f) for f in fields] for trial in run.trials()] for run in (ours, theirs))
    assert mine == other
    engine = theirs.manifest().engine
    assert (engine.backend, engine.arm_paths) == ("lm-eval", {"default": "cold"})
    assert engine.effective_profile["lm_eval"] == {
        "model": "hf",
        "arguments": {"device": "cpu", "dtype": "float32", "max_length": "4096"},
        "counts_tokens": True,
    }
    assert ours.manifest().model.weights_sha256 == theirs.manifest().model.weights_sha256


@pytest.mark.filterwarnings("ignore")
def test_tokens_are_those_that_lm_eval_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second first token, or a prompt that it would cut, is not the plan's number; too long is refused before."""
    backend = LmEvalBackend("builtin:hybrid", FULL, HF, profile="full")
    asked = group(backend, ends=(64,), max_tokens=3)
    planned = [question.expected_prompt_tokens for question in asked.asks[0].questions]
    assert [answer.prompt_tokens for answer in backend.answer(asked)] == planned
    encode = backend._lm.tok_encode
    monkeypatch.setattr(backend._lm, "tok_encode", lambda text, *a, **k: [1, *encode(text, *a, **k)])
    assert [answer.prompt_tokens for answer in backend.answer(asked)] == [count + 1 for count in planned]
    with pytest.raises(DoesNotFitError, match="at most 4096 fit"):
        backend.answer(group(backend, ends=(64,), max_tokens=4096))
    # Bytes of half a character have no text that becomes the same tokens.
    (first,) = backend.tokenizer.encode("é")[:1]
    odd = asked._replace(tokens=[*asked.tokens[:-1], first])
    assert {answer.error_code for answer in backend.answer(odd)} == {"other-tokens"}


@pytest.mark.filterwarnings("ignore")
def test_what_lm_eval_does_not_do_is_refused(evalgate: Evalgate, tmp_path: Path) -> None:
    """No kind of model, one that is not known, one that does not open, a profile that compresses, a short window."""
    words = ("run", "smoke", "--seeds", 1, "--model", "builtin:hybrid", "--backend", "lm-eval", "--out", tmp_path / "r")
    ended = evalgate(*words)
    assert ended.code == ExitCode.REFUSED
    assert "--backend lm-eval needs --lm" in ended.err
    with pytest.raises(UnsupportedError, match="no model of this name"):
        LmEvalBackend("builtin:hybrid", FULL, LoadOptions(lm="hff"), profile="full")
    with pytest.raises(CheckpointError, match="cannot be opened with"):
        LmEvalBackend(
            "builtin:hybrid", FULL, LoadOptions(lm="hf", lm_args={"pretrained": str(tmp_path)}), profile="full"
        )
    with pytest.raises(UnsupportedError, match="state"):
        LmEvalBackend("builtin:hybrid", load_profile("state-int8").sections, HF, profile="state-int8")
    with pytest.raises(DoesNotFitError, match="lm-eval's model takes 4096"):
        LmEvalBackend("builtin:hybrid", FULL, HF, profile="full", max_tokens=8192)
