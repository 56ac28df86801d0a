"""The table of operations: every device has its form, and one that cannot be used is refused with the remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evalgate import doctor
from evalgate.errors import UnknownNameError, UnsupportedError
from evalgate.kernels import ops
from evalgate.kernels.gpu import published


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A GPU as far as torch's answers go."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H100")
    return monkeypatch


def test_every_path_is_a_module(repository: Path) -> None:
    """The table names modules that are there, and every kernel that is published has its operation."""
    paths = {path for forms in ops.OPS.values() for path in forms}

    for path in paths:
        name = path.removeprefix("evalgate.").replace(".", "/")
        assert (repository / f"{name}.py").is_file(), path
    assert set(published.MODULES) <= paths


def test_table_costs_nothing_to_read() -> None:
    """Asking for a form on the processor loads neither torch nor triton."""
    code = (
        "import sys; from evalgate.kernels import ops; ops.resolve('kda_decode', 'cpu'); "
        "print({'torch', 'triton'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert told.stdout == "set()\n"


def test_processor_uses_torch() -> None:
    """On the processor every operation has its torch form, which can be loaded."""
    for op in ops.OPS:
        choice = ops.resolve(op, "cpu")
        assert (choice.form, choice.why) == ("torch", "device cpu")
        assert getattr(ops.load(choice), "__name__", "") == f"evalgate.kernels.{op}"


def test_gpu_uses_triton(gpu: pytest.MonkeyPatch) -> None:
    """On a GPU the kernels are Triton's, but for what torch's own products do."""
    forms = {choice.op: choice.form for choice in ops.explain()}

    assert {op for op, form in forms.items() if form == "torch"} == {"moe", "latent_codec"}
    assert ops.resolve("kda_decode", "cuda").path == "evalgate.kernels.gpu.kda_decode"
    assert ops.explain()[0].why == "NVIDIA H100, sm_90"
    gpu.setattr("torch.cuda.get_device_capability", lambda: (7, 5))
    with pytest.raises(UnsupportedError, match=r"is sm_75; the kernels need sm_80 or later.*, or use --device cpu"):
        ops.resolve("kda_decode", "cuda")


def test_device_that_is_not_there_is_refused(gpu: pytest.MonkeyPatch) -> None:
    """Nothing falls back in silence: each obstacle is said with what to do about it."""
    gpu.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UnsupportedError, match="finds no GPU; see that `nvidia-smi`"):
        ops.resolve("moe", "cuda")
    gpu.setattr(torch.version, "cuda", None)
    with pytest.raises(UnsupportedError, match="without CUDA; install a CUDA build"):
        ops.explain("cuda")
    gpu.setattr(ops, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match="pip install triton"):
        ops.usable("cuda")
    gpu.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedError, match="for Linux"):
        ops.usable("cuda")
    ops.usable("cpu")


def test_interpreter_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs the GPU's forms on the processor, where the environment asked for it in time."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert ops.resolve("mla_decode", "cpu-interpret").form == "triton"
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(UnsupportedError, match="set it before the program starts"):
        ops.resolve("mla_decode", "cpu-interpret")


def test_unknown_names_are_refused_with_the_nearest() -> None:
    """A slip of the pen is answered with what was meant."""
    with pytest.raises(UnknownNameError, match="did you mean kda_decode"):
        ops.resolve("kda_decod", "cpu")
    with pytest.raises(UnknownNameError, match="no device is called 'cuda:0'; known: cpu, cuda, cpu-interpret"):
        ops.resolve("kda_decode", "cuda:0")


def test_doctor_names_the_form_and_the_reason(gpu: pytest.MonkeyPatch) -> None:
    """The doctor says which operations use which form, and why."""
    found = {finding.name: finding.detail for finding in doctor.examine()}["kernels"]
    assert "triton: kda_prefill, " in found
    assert "torch: latent_codec, moe (NVIDIA H100, sm_90; torch's own kernels do it)" in found

    gpu.setattr(torch.version, "cuda", None)
    found = {finding.name: finding.detail for finding in doctor.examine()}["kernels"]
    assert found.startswith(f"torch for all {len(ops.OPS)} operations (no cuda here: ")
    assert "built without CUDA" in found
