"""The engine's path of a GPU, its kernels interpreted on a processor: the answers of the processor's own path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fixtures_requests import words
from torch.utils._python_dispatch import TorchDispatchMode

from evalgate.engine.compression import Compression
from evalgate.engine.llm import LLM, DtypeName
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.request import Request, Result
from evalgate.engine.visibility import ContextSpan
from evalgate.errors import UnknownNameError, UnsupportedError
from evalgate.records import Outcome
from evalgate.runner import RunRequest, prepare, run_suite
from evalgate.tasks.suite import load_suite

NEAR = 1e-5
"""Log probabilities in float32 by other orders of the same sums; 2e-6 was seen."""
ROUNDED = 3e-2
"""The same where activations are bfloat16 and steps round at other places."""


@pytest.fixture(scope="module")
def hybrid(tiny_models: dict[str, Path]) -> Checkpoint:
    """A random hybrid."""
    return load_checkpoint(tiny_models["hybrid"])


def everything(checkpoint: Checkpoint, device: str, dtype: DtypeName, compression: Compression) -> list[Result]:
    """Unequal prompts together, one again from its stored prefix, and forks of one parent."""
    llm = LLM(checkpoint, device=device, dtype=dtype, compression=compression, max_tokens=256, max_sessions=4)
    prompts = [words(n, seed=n) for n in (66, 70)]
    requests = [Request(tokens=p, max_tokens=2, context=ContextSpan(2, len(p) - 3)) for p in prompts]
    results = llm.run(requests) + llm.run(requests[1:])
    parent = llm.prefill(prompts[1][:64])
    forks = llm.fork(parent, [words(5), [7]], ContextSpan(2, 64))
    results += llm.generate(forks, 2)
    llm.check_integrity()
    assert llm.device.name == device
    assert results[2].cached_tokens == 64
    return results


def assert_alike(found: list[Result], expected: list[Result], tolerance: float) -> None:
    """The same tokens, and log probabilities within the tolerance."""
    assert [result.tokens for result in found] == [result.tokens for result in expected]
    one, other = (torch.tensor([result.logprobs for result in results]) for results in (found, expected))
    torch.testing.assert_close(one, other, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("shape", "compression"),
    [
        ("hybrid", Compression()),
        ("mostly-attention", Compression(state_dtype="int8", codec_every=64, kv_dtype="int8", kv_keep=0.5)),
        ("mostly-attention", Compression(kv_window=50)),
    ],
    ids=str,
)
def test_kernels_answer_as_the_processor_does(
    tiny_models: dict[str, Path], shape: str, compression: Compression
) -> None:
    """Prefill, stored prefixes, forks and decode steps in recorded shapes, under profiles of every kind."""
    checkpoint = load_checkpoint(tiny_models[shape])
    expected = everything(checkpoint, "cpu", "fp32", compression)
    assert_alike(everything(checkpoint, "cpu-interpret", "fp32", compression), expected, NEAR)


def test_experts_and_bfloat16(tiny_models: dict[str, Path]) -> None:
    """Grouped products, low-rank queries and half the precision: the same up to rounding."""
    checkpoint = load_checkpoint(tiny_models["experts"])
    request = Request(tokens=words(20), max_tokens=2)
    engines = [LLM(checkpoint, device=d, dtype="bf16", max_tokens=64) for d in ("cpu-interpret", "cpu")]
    found, expected = (llm.run([request])[0] for llm in engines)
    assert abs(found.logprobs[0] - expected.logprobs[0]) < ROUNDED
    assert found.tokens[0] == expected.tokens[0]


def test_an_embedded_model_finds_its_needle(tmp_path: Path) -> None:
    """A run of a suite on the device, through the whole program, answer for answer."""
    body = load_suite("smoke").model_dump(by_alias=True, mode="json", exclude_unset=True)
    fields = {"name": "short", "lengths": [474], "tasks": ["single"], "bands": {"all": [0, 1]}}
    path = tmp_path / "short.yaml"
    path.write_text(yaml.safe_dump(body | fields), encoding="utf-8")
    answers = {}
    for device in ("cpu", "cpu-interpret"):
        request = RunRequest(suite=str(path), model="builtin:hybrid", device=device, seeds=1, seed_set="gpu")
        run = run_suite(prepare(request), tmp_path / device)
        assert run.manifest().engine.device == device
        answers[device] = [(trial.trial_id, trial.answer) for trial in run.trials()]
        assert all(trial.outcome is Outcome.CORRECT for trial in run.trials())
    assert answers["cpu"] == answers["cpu-interpret"]


WAITING = frozenset(
    [
        "_local_scalar_dense",
        "nonzero",
        "bincount",
        "equal",
        "is_nonzero",
        "masked_select",
        "unique_dim",
        "linalg_qr",
        "_linalg_eigh",
        "_linalg_svd",
        "linalg_lstsq",
        "linalg_cholesky_ex",
        "linalg_inv_ex",
    ]
)
"""Operations whose result the processor needs before it goes on, and decompositions, which see whether they converged:
a recording of a GPU's kernels cannot hold them."""


class NoWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch has it
    """Raises at an operation that waits for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in WAITING, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("compression", "recorded"),
    [
        (Compression(), True),
        (Compression(state_dtype="bf16", kv_dtype="int8"), True),
        (Compression(state_dtype="int8", error_feedback=True, kv_window=50), True),
        (Compression(state_dtype="int4", kv_keep=0.5), True),
        (Compression(state_rank=4), False),
    ],
    ids=str,
)
def test_a_recorded_step_never_waits_for_the_device(
    hybrid: Checkpoint, monkeypatch: pytest.MonkeyPatch, compression: Compression, *, recorded: bool
) -> None:
    """A step that would, for the decomposition of a rank, is not recorded; both go on to the same answers."""
    recordings = []

    def record(step: Callable[[], None]) -> Callable[[], None]:
        with NoWaiting():  # type: ignore[no-untyped-call]  # as above
            step()
        recordings.append(step)
        return step

    monkeypatch.setattr("evalgate.engine.device.again", record)
    requests = [Request(tokens=words(n, seed=n), max_tokens=2, context=ContextSpan(2, n - 3)) for n in (12, 20)]
    engines = [LLM(hybrid, device=d, compression=compression, max_tokens=64) for d in ("cpu-interpret", "cpu")]
    found, expected = (llm.run(requests) for llm in engines)
    assert_alike(found, expected, NEAR)
    assert bool(recordings) == recorded


def test_what_a_device_cannot_do_is_refused(hybrid: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, with the remedy, before anything is loaded; nothing falls back."""
    with pytest.raises(UnknownNameError, match="no device is called 'gpu'"):
        LLM(hybrid, device="gpu")
    with pytest.raises(UnsupportedError, match="dtype fp64 has no kernels"):
        LLM(hybrid, device="cpu-interpret", dtype="fp64")
    with pytest.raises(UnsupportedError, match=r"cache.page 96; expected a power of two from 16"):
        LLM(hybrid, device="cpu-interpret", page=96)
    monkeypatch.setattr("evalgate.engine.device.HEAD_WIDTHS", (32, 64, 128))
    with pytest.raises(UnsupportedError, match="heads of width 16 were found, the kernels have 32, 64, 128"):
        LLM(hybrid, device="cpu-interpret")
