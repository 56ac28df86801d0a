"""GPU kernels are compiled for chips that are not here, and what must not be is named."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalgate.errors import ExitCode
from evalgate.kernels.gpu import published
from evalgate.kernels.gpu.builds import IMPORTING, Row, build_all
from evalgate.kernels.gpu.chips import CHIPS, residents

Evalgate = Callable[..., Any]

HEAD = """
import os
import triton
import triton.language as tl
from evalgate.kernels.gpu.launch import Launch
"""

PRODUCT = (
    HEAD
    + """
@triton.jit
def product(a, b, c, depth, stride, step, N: tl.constexpr, K: tl.constexpr):
    n, k = tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((N, N), tl.float32)
    for at in range(0, depth, K):
        left = tl.load(a + n[:, None] * stride + (at + k)[None, :] * step)
        right = tl.load(b + (at + k)[:, None] * stride + n[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + n[:, None] * stride + n[None, :], total)

def published():
    types = {"a": "*bf16", "b": "*bf16", "c": "*fp32", "depth": "i32", "stride": "i64"}
    whole = Launch("whole", product, types, {"step": 1, "N": 128, "K": 64}, 8, 3, "one", ("depth", "stride"))
    return whole, whole._replace(name="ragged", multiples_of_16=(), chips=("sm_90",))
"""
)

WIDE = (
    HEAD
    + """
@triton.jit
def middle(x):
    return x - tl.sum(x)

@triton.jit
def wide(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), middle(tl.load(x + tl.arange(0, N))))

@triton.jit
def wrong(x):
    tl.store(x, missing)

class Deadly:
    @property
    def arg_names(self):
        print("the last words", flush=True)
        os.abort()

def published():
    spills = Launch("spills", wide, {"x": "*fp32"}, {"N": 8192}, 1, 1, "one")
    return (
        spills,
        Launch("deadly", Deadly(), {"x": "*fp32"}, {}, 4, 1, "one"),
        spills._replace(name="may spill", spill_reason="a row is wide"),
        Launch("wrong", wrong, {"x": "*fp32"}, {}, 4, 1, "one"),
        spills._replace(name="strange argument", constants={"M": 1}),
        spills._replace(name="small", constants={"N": 128}),
    )
"""
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, and workers that find its modules, whatever the environment says."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "cache" / "evalgate" / "kernels"


def built(row: Row) -> dict[str, Any]:
    """What a row's code takes and does."""
    assert row.build is not None, row.error
    return row.build


def test_matrix_instructions_are_those_of_the_chip(tmp_path: Path) -> None:
    """A product of bf16 tiles uses each chip's own instruction, and no register is spilled."""
    (tmp_path / "product.py").write_text(PRODUCT)
    rows = [row for row in build_all(["product"], list(CHIPS), workers=1) if row.name == "whole"]

    assert [row.chip for row in rows] == ["sm_80", "sm_90", "sm_100"]
    assert [list(built(row)["matrix"]) for row in rows] == [["mma bf16"], ["wgmma bf16"], ["tcgen05 f16"]]
    assert [row.fault for row in rows] == ["", "", ""]
    assert [built(row)["tensor_columns"] for row in rows] == [0, 0, 128]
    for row in rows:
        assert list(built(row)["loads"]) == ["16"]
        assert 64 <= built(row)["registers"] < 255
        assert built(row)["shared"] >= 2 * 128 * 64 * 2
        assert built(row)["warps"] in {8, 16}


def test_strides_are_what_the_launch_says(tmp_path: Path) -> None:
    """Where a launch does not say that 16 divides a stride, loads are narrow; it is built for its own chips only."""
    (tmp_path / "product.py").write_text(PRODUCT)
    whole, ragged = build_all(["product"], ["sm_90"], workers=1)
    (other,) = build_all(["product"], ["sm_80"], workers=1)

    assert other.name == "whole", "the ragged one is not for that chip"
    assert "16" in built(whole)["loads"]
    assert "16" not in built(ragged)["loads"]


def test_each_fault_is_named_and_stops_no_other(tmp_path: Path) -> None:
    """Spills without a reason, code that does not compile, a compiler that dies, a module that cannot be imported."""
    (tmp_path / "wide.py").write_text(WIDE)
    done = []
    rows = build_all(["wide", "missing"], ["sm_80"], lambda: done.append(1), workers=1)
    spills, deadly, may, wrong, strange, small, missing = rows

    names = ["spills", "deadly", "may spill", "wrong", "strange argument", "small", IMPORTING]
    assert [row.name for row in rows] == names
    assert built(spills)["spilled"] > 0
    assert spills.fault == f"spills {built(spills)['spilled']} bytes a thread, and its launch names no reason"
    assert "the compiler died (-6)" in deadly.fault
    assert "the last words" in deadly.fault
    assert (built(may)["spilled"], may.fault) == (built(spills)["spilled"], "")
    assert "missing is not defined" in wrong.fault
    assert "['M'] are no arguments of the kernel" in strange.fault
    assert (built(small)["spilled"], small.fault) == (0, "")
    assert "No module named 'missing'" in missing.fault
    assert len(done) == 2


def test_interrupt_ends_the_workers(tmp_path: Path) -> None:
    """Ctrl-C is heard at once, although a compiler is at work and others wait."""
    told = tmp_path / "told"
    (tmp_path / "slow.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(told)!r}).write_text(str(os.getpid()))\ntime.sleep(60)\n"
    )
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        while not told.exists() or not told.read_text():
            time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        build_all(["slow"], list(CHIPS), workers=1)
    thread.join()

    assert time.monotonic() - started < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_results_are_kept_until_the_source_changes(tmp_path: Path, cache: Path) -> None:
    """What was read is read again from the cache; a callee that changes, or a file that is broken, compiles anew."""
    source = tmp_path / "wide.py"
    text = WIDE[: WIDE.index("    return (")] + "    return (spills._replace(constants={'N': 128}),)\n"
    source.write_text(text)

    def small() -> dict[str, Any]:
        (row,) = build_all(["wide"], ["sm_90"], workers=1)
        return built(row)

    first = small()
    for path in cache.iterdir():
        path.write_text(json.dumps(json.loads(path.read_text()) | {"registers": 77}))
    assert small() == first | {"registers": 77}
    for path in cache.iterdir():
        path.write_text("{")
    assert small() == first
    files = set(cache.iterdir())
    source.write_text(text.replace("x - tl.sum(x)", "x + tl.sum(x)"))
    small()
    assert len(set(cache.iterdir())) == 2 * len(files)


@pytest.mark.parametrize(
    ("chip", "block_warps", "registers", "shared", "columns", "expected"),
    [
        ("sm_80", 4, 32, 0, 0, (64, "warps")),
        ("sm_80", 1, 32, 0, 0, (32, "blocks")),
        ("sm_80", 8, 128, 0, 0, (16, "registers")),
        ("sm_90", 4, 255, 0, 0, (8, "registers")),
        ("sm_90", 4, 168, 0, 0, (12, "registers")),
        ("sm_90", 4, 64, 100 * 1024, 0, (8, "shared memory")),
        ("sm_90", 4, 64, 114 * 1024, 0, (4, "shared memory")),
        ("sm_80", 4, 64, 100 * 1024, 0, (4, "shared memory")),
        ("sm_80", 4, 64, 164 * 1024, 0, (0, "shared memory")),
        ("sm_90", 4, 64, 164 * 1024, 0, (4, "shared memory")),
        ("sm_100", 4, 64, 1024, 256, (8, "tensor memory")),
        ("sm_80", 16, 255, 0, 0, (0, "registers")),
    ],
)
def test_occupancy_is_the_calculators(
    chip: str, block_warps: int, registers: int, shared: int, columns: int, expected: tuple[int, str]
) -> None:
    """Warps on a multiprocessor, as NVIDIA's occupancy calculator has them, and what bounds them."""
    assert residents(CHIPS[chip], block_warps, registers, shared, columns) == expected


def test_block_that_fits_nowhere_is_a_fault() -> None:
    """Machine code that no multiprocessor can start is no use."""
    build = {"warps": 0, "limit": "shared memory", "spilled": 0}

    assert Row("m", "n", "sm_80", build=build).fault == "a block does not fit: shared memory of sm_80 do not suffice"


def test_command_exits_4_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evalgate: Evalgate) -> None:
    """The report ends with ERROR where a kernel is at fault; table and JSON both have the fault, each once."""
    (tmp_path / "wide.py").write_text(WIDE)
    monkeypatch.setattr(published, "MODULES", ("wide",))

    ended = evalgate("kernels", "report", "--chip", "sm_90", "--chip", "sm_80", "--jobs", "1")
    assert ended.code == ExitCode.ERROR
    assert ended.out.count("bytes a thread, and its launch names no reason") == 1
    assert "sm_90, sm_80: wide may spill may spill: a row is wide" in ended.out
    assert ended.out.splitlines()[-1] == "8 of 12 builds are at fault"

    ended = evalgate("kernels", "report", "--chip", "sm_90", "--json")
    body = json.loads(ended.out)
    assert (ended.code, body["ok"], body["chips"]) == (ExitCode.ERROR, False, ["sm_90"])
    faults = {kernel["name"]: kernel["fault"] for kernel in body["kernels"]}
    assert faults["small"] == faults["may spill"] == ""
    assert "spills" in faults["spills"]


def test_command_exits_0_where_all_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evalgate: Evalgate) -> None:
    """The report of kernels without fault ends with PASS and shows what a reader compares."""
    (tmp_path / "product.py").write_text(PRODUCT)
    monkeypatch.setattr(published, "MODULES", ("product",))
    ended = evalgate("kernels", "report", "--chip", "sm_90")

    assert ended.code == ExitCode.PASS
    assert ended.out.splitlines()[-1] == "2 builds, all well"
    (line,) = [line for line in ended.out.splitlines() if "product whole" in line]
    assert "wgmma bf16" in line
    assert "none" in line


def test_impossible_requests_are_refused(monkeypatch: pytest.MonkeyPatch, evalgate: Evalgate) -> None:
    """A chip that is not known, and a comparison with what is not installed, are refused with the remedy."""
    ended = evalgate("kernels", "report", "--chip", "sm_9")
    assert (ended.code, "did you mean sm_90" in ended.err) == (ExitCode.REFUSED, True)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "fla" else object())
    ended = evalgate("kernels", "report", "--fla")
    assert (ended.code, "pip install 'evalgate-longctx[fla]'" in ended.err) == (ExitCode.REFUSED, True)

    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    ended = evalgate("kernels", "report")
    assert (ended.code, "triton, which is not installed" in ended.err) == (ExitCode.REFUSED, True)
