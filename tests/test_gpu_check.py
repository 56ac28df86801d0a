"""`tools/gpu_check.py` as far as it goes without a GPU: comparisons in the interpreter, medians, table, file."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from evalgate.kernels.gpu import published
from evalgate.kernels.lse_merge import Part

NAMES = (
    "gpu_clock",
    "gpu_inputs",
    "gpu_compare",
    "gpu_truth_kda",
    "gpu_truth_mla",
    "gpu_truth",
    "gpu_rival",
    "gpu_cases",
    "gpu_speed",
    "gpu_model",
    "gpu_whole",
    "gpu_table",
    "gpu_check",
)


@pytest.fixture
def tools(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The modules of the tool by name, importable while a test lasts."""
    monkeypatch.syspath_prepend(repository / "tools")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(
    tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No device, an interpreter that was not asked for in time, or that would take hours: exit 2 and the remedy."""
    interpreted = ["--device", "cpu-interpret"]
    for words, remedy in (([], "CUDA"), (interpreted, "add --tiny")):
        assert tools["gpu_check"].main(words) == 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n"), remedy in told.err) == ("", 1, True)
    monkeypatch.delenv("TRITON_INTERPRET")
    assert tools["gpu_check"].main([*interpreted, "--tiny"]) == 2
    assert "TRITON_INTERPRET" in capsys.readouterr().err


def test_every_comparison_holds_in_the_interpreter(repository: Path, tmp_path: Path) -> None:
    """The whole tool at tiny shapes: every kernel is compared, all is right, and the file says so."""
    words = ("--device", "cpu-interpret", "--tiny", "--seed", "3", "--out", str(tmp_path))
    command = [sys.executable, str(repository / "tools" / "gpu_check.py"), *words]
    environment = os.environ | {"PYTHONPATH": str(repository), "TRITON_INTERPRET": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "WRONG" not in ended.stdout
    body = json.loads((tmp_path / "interpreter.json").read_text())
    assert (body["right"], body["seed"], body["targets_met"], body["rates"]) == (True, 3, None, None)
    compared = {check["kernel"] for check in body["checks"]}
    assert {module.rpartition(".")[2] for module in published.MODULES} | {"evalgate"} <= compared


def test_comparison_sees_what_is_wrong(tools: dict[str, ModuleType]) -> None:
    """An error in a small row, a number that was not written, and an error in a row near zero count as they should."""
    check = tools["gpu_compare"].check
    want = torch.full((3, 8), 100.0)
    want[1], want[2] = 10.0, 1e-6
    got = want.clone()
    got[1, 3] = 10.5
    assert check("k", "w", got, want, 0.05).worst == pytest.approx(0.05)
    got[1, 3], got[2, 0] = torch.nan, 0.0
    assert not check("k", "w", got, want, 1.0).ok
    got[1, 3] = 10.0
    assert check("k", "w", got, want, 1e-6).ok
    got[2, 0] = 6.25
    assert check("k", "w", got, want, 0.5).worst == pytest.approx(1.0)


def test_memory_is_poisoned_for_a_kernel(tools: dict[str, ModuleType]) -> None:
    """What a launcher allocates is NaN until it is written, and memory is as usual afterwards."""
    assert tools["gpu_compare"].called(lambda: torch.empty(100)).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_every_case_can_run(tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured on a GPU runs at tiny shapes here, once each, and its median, rate and shares are made."""
    clock, speed, inputs = tools["gpu_clock"], tools["gpu_speed"], tools["gpu_inputs"]
    monkeypatch.setattr(clock, "MOST_INPUTS", 2)
    monkeypatch.setattr(clock, "LEAST", 1)
    monkeypatch.setattr(clock, "SECONDS", 0.0)
    make = inputs.Maker(torch.device("cpu"), 0)
    watch, rates = clock.Clock(torch.device("cpu"), 10.0), clock.Rates(1e9, 1e12)
    what = tools["gpu_cases"]
    cases = list(what.cases(make, inputs.TINY._replace(heads=1), what.TINY, None))
    found = [speed.measure(case, watch, rates) for case in cases]

    kernels = {module.rpartition(".")[2] for module in published.MODULES}
    assert {one.kernel for one in found} == kernels - {"lse_merge"}, "which runs inside of mla_decode"
    for case, one in zip(cases, found, strict=True):
        assert one.seconds is not None, one
        assert one.rate == pytest.approx(case.units / one.seconds)
        assert one.of_copy == pytest.approx(case.nbytes / one.seconds / 1e9)
        assert one.note == ""
    out_of_time = speed.measure(cases[0], clock.Clock(torch.device("cpu"), 0.0), rates)
    assert (out_of_time.seconds, out_of_time.note) == (None, "no time was left")


def test_whole_suite_is_timed(tools: dict[str, ModuleType]) -> None:
    """A run of a random model, with all tokens that went through it; and no number where there is no time."""
    clock, whole = tools["gpu_clock"], tools["gpu_whole"]
    make = tools["gpu_inputs"].Maker(torch.device("cpu"), 0)
    found = whole.suite_speed(make, "cpu", clock.Clock(torch.device("cpu"), 10.0), tiny=True)

    assert (found.kernel, found.unit, found.note) == ("evalgate", "tokens/s", "")
    assert 500 < found.rate * found.seconds < 700, "a haystack of 512 tokens, its question and its answer"
    out_of_time = whole.suite_speed(make, "cpu", clock.Clock(torch.device("cpu"), 0.0), tiny=True)
    assert (out_of_time.seconds, out_of_time.note) == (None, "no time was left")


def test_another_answer_is_seen(tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that answers otherwise, or whose log probabilities are no numbers, is wrong."""
    whole, make = tools["gpu_whole"], tools["gpu_inputs"].Maker(torch.device("cpu"), 0)
    one, other = whole.Answers([1, 2], torch.tensor([-1.0, -2.0])), whole.Answers([1, 3], torch.tensor([-1.0, -2.1]))
    nothing = whole.Answers([1, 2], torch.tensor([-1.0, torch.nan]))
    for found, wrong in (([one, one, one], []), ([one, other, one], [0, 1]), ([one, nothing, nothing], [1, 2])):
        given = iter(found)
        monkeypatch.setattr(whole, "answers", lambda *_, given=given: next(given))
        checks = list(whole.parity(make, "cpu", tiny=True))
        assert [at for at, check in enumerate(checks) if not check.ok] == wrong


def test_rival_is_compared_where_there_is_time(tools: dict[str, ModuleType]) -> None:
    """What stands beside a median changes its target; a tuner that goes on for ever is stopped and named."""
    clock, speed, what = tools["gpu_clock"], tools["gpu_speed"], tools["gpu_cases"]
    watch = clock.Clock(torch.device("cpu"), 10.0)
    rest = (1.0, "tokens/s", 1.0, 1.0, 0.0, list)
    case = what.Case("kda_prefill", "8K", *rest, rival=lambda: [lambda: time.sleep(0.001)], target="prefill")
    found = speed.Speed("kda_prefill", "8K", 1.0)

    slower = speed.compare(case, found, watch)
    assert (slower.met, slower.note) == (False, "")
    assert slower.rival_seconds == pytest.approx(0.001, abs=0.01)
    assert speed.compare(case, found._replace(seconds=None), watch).rival_seconds is None
    endless = case._replace(rival=lambda: [lambda: time.sleep(60)])
    stopped = speed.compare(endless, found, clock.Clock(torch.device("cpu"), 0.2 / 60))
    assert (stopped.rival_seconds, stopped.met, stopped.note) == (None, None, "fla: no time was left")


def test_published_cases_count_what_the_design_counts(tools: dict[str, ModuleType]) -> None:
    """Bytes and operations at the published shapes are those of the equations."""
    inputs, what = tools["gpu_inputs"], tools["gpu_cases"]
    make = inputs.Maker(torch.device("cpu"), 0)
    cases = {(case.kernel, case.what): case for case in what.cases(make, inputs.PUBLISHED, what.Sizes(), None)}

    assert cases["kda_prefill", "8K tokens"].operations == 8192 * 32 * 126_976
    assert cases["mla_decode", "1 rows of 1M tokens"].nbytes == 1152 * 2**20
    assert cases["mla_decode", "1 rows of 1M tokens"].operations == 69_632 * 2**20
    decode = cases["kda_decode", "16 rows, fp32 states"]
    assert decode.nbytes == pytest.approx(16 * 32 * 8 * 128**2, rel=0.01)
    fork = cases["state_codec", "fork of 1, all layers"]
    assert fork.nbytes == 2 * 41_943_040


@pytest.mark.parametrize(
    ("rule", "fields", "met"),
    [
        ("prefill", {"seconds": 1.0, "rival_seconds": 1.1}, True),
        ("prefill", {"seconds": 1.0, "rival_seconds": 0.9}, False),
        ("prefill", {"seconds": 1.0}, None),
        ("decode", {"of_copy": 0.7}, True),
        ("decode", {"of_copy": 0.69}, False),
        ("attention", {"of_copy": 0.6}, True),
        ("restore", {"seconds": 2.0, "copy_seconds": 1.0}, True),
        ("restore", {"seconds": 2.1, "copy_seconds": 1.0}, False),
    ],
)
def test_targets(tools: dict[str, ModuleType], rule: str, fields: dict[str, float], met: bool | None) -> None:
    """A target is met, missed, or says nothing where there is nothing to compare with."""
    speed = tools["gpu_speed"]

    assert speed.TARGETS[rule](speed.Speed("k", "w", **{"seconds": None} | fields)) is met


def test_table_and_file_say_what_was_found(tools: dict[str, ModuleType], tmp_path: Path) -> None:
    """A line for each case, shares in per cent, reasons where there is no number; JSON has no NaN."""
    speed, table = tools["gpu_speed"].Speed, tools["gpu_table"]
    speeds = [
        speed("kda_prefill", "8K tokens", 0.00125, 6.5e6, "tokens/s", 0.42, 0.08, 0.0015, None, met=True),
        speed("state_codec", "fork of 1", 3.1e-5, 32258.0, "states/s", 0.9, 0.0, None, 2.9e-5, met=False),
        speed("mla_decode", "16 rows", None, note="needs 90 GiB of memory"),
    ]
    checks = [tools["gpu_compare"].Check("kda_decode", "fp32 output", float("nan"), 1e-4)]
    body = table.document(checks, speeds, tools["gpu_clock"].Rates(4e12, 8e14), chip="NVIDIA H200 NVL")
    path = table.write(tmp_path / "gpu", body)

    assert path.name == "nvidia-h200-nvl.json"
    kept = json.loads(path.read_text())
    assert (kept["right"], kept["targets_met"], kept["checks"][0]["worst"]) == (False, False, None)
    lines = table.markdown(speeds).splitlines()
    assert lines[2:] == [
        "| kda_prefill | 8K tokens | 1.25 ms | 6.5M tokens/s | 42% | 8% | 1.50 ms (1.20x) | met |",
        "| state_codec | fork of 1 | 31.0 µs | 32.3K states/s | 90% |  | copy: 29.0 µs | MISSED |",
        "| mla_decode | 16 rows | needs 90 GiB of memory |  |  |  |  |  |",
    ]
    assert len({line.count("|") for line in lines}) == 1


def test_medians_take_turns(tools: dict[str, ModuleType]) -> None:
    """Inputs rotate, and small ones are as many as no cache holds."""
    clock = tools["gpu_clock"]
    turns: list[int] = []
    runs = [lambda at=at: turns.append(at) for at in range(3)]
    took = clock.Clock(torch.device("cpu"), 1.0).median(runs)

    assert took < 0.01
    assert turns[:5] == [0, 0, 1, 2, 0]
    assert len(turns) >= clock.LEAST + 2
    assert [clock.rotation(n) for n in (1, 2**27, 2**29, 2**33)] == [64, 4, 1, 1]
    rates = clock.measured_rates(clock.Clock(torch.device("cpu"), 1.0), copied=2**16, side=16)
    assert min(rates) > 0


def test_planted_faults_are_seen(tools: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is not written, a mask that is a clamp, parts joined without weights: each makes a check fail."""
    kda, mla, inputs = tools["gpu_truth_kda"], tools["gpu_truth_mla"], tools["gpu_inputs"]
    make, shape = inputs.Maker(torch.device("cpu"), 0), inputs.TINY

    def last_row_forgotten(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = torch.empty_like(x)
        out[:-1] = rms_norm(x[:-1], weight, eps)
        return out

    def clamped(*given: torch.Tensor, scale: float) -> Any:
        *others, parents, slots = given
        return kda_decode(*others, parents.clamp(min=0), slots.clamp(min=0), scale=scale)

    def unweighted(parts: Part, dtype: torch.dtype) -> Part:
        return Part(parts.output.nan_to_num().mean(dim=-2).to(dtype), parts.lse.logsumexp(dim=-1))

    rms_norm, kda_decode = kda.rms_norm, kda.kda_decode
    monkeypatch.setattr(kda, "rms_norm", last_row_forgotten)
    monkeypatch.setattr(kda, "kda_decode", clamped)
    monkeypatch.setattr(mla, "lse_merge", unweighted)
    found = [*kda.norm(make, shape, 3, torch.float32), *mla.merge(make, shape)]
    found += [check for check in kda.decode(make, shape, 4, torch.float32) if "fp32 states" in check.what]

    assert {(check.kernel, check.what) for check in found if not check.ok} == {
        ("rms_norm", "fp32 part of rows"),
        ("lse_merge", "output"),
        ("kda_decode", "fp32, fp32 states, masked row"),
    }
