"""Capacity: ceilings by hand and by drawing, drift against a library, and every bad input in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fixtures_published import PUBLISHED

from evalgate.capacity import Lengths, ceiling, drift, pools, read_lengths, savings
from evalgate.capacity.model import gpu_memory, profile_cost, read_bytes, read_model
from evalgate.engine.budget import SessionCost
from evalgate.errors import DoesNotFitError, ExitCode, RefusedError
from evalgate.runner import RunRequest, prepare, run_suite
from evalgate.stats import ks_two_sample

Evalgate = Callable[..., Any]
COST = SessionCost(kv_token=1, state=10)
"""A session of t tokens takes 10 + t bytes where pages hold one token."""


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """``table([1, 2], "tokens")``: a CSV file."""

    def write(values: list[Any], column: str = "tokens", name: str = "lengths.csv") -> Path:
        path = tmp_path / name
        pd.DataFrame({column: values}).to_csv(path, index=False)
        return path

    return write


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder with the configuration of the published 48B model, and no weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED))
    return folder


def test_contexts_of_one_length_have_one_ceiling(published: Path) -> None:
    """The published model at 8,192 tokens: memory by what a session takes to the byte, however it is reckoned."""
    _, config = read_model(str(published))
    _, cost = profile_cost(config, "full", "bf16")
    found = ceiling(cost, Lengths([8192] * 50, "x"), 40 * 10**9)

    assert found.session_mean == 109_477_888
    assert {found.mean, found.p95, found.typical, found.sure} == {40 * 10**9 // 109_477_888}


def test_drawing_finds_what_fits() -> None:
    """One context in four is long: the sure ceiling holds in 99 of 100 draws of another kind, one more does not."""
    lengths = Lengths([90, *[1] * 3], "x")
    found = ceiling(COST, lengths, 2000, page=1)
    draw = np.random.default_rng(99)
    drawn = np.cumsum(draw.choice([100, 11, 11, 11], size=(20000, 400)), axis=1)
    fitting = (drawn <= 2000).sum(axis=1)

    assert (found.mean, found.p95) == (2000 // 33, 20)
    assert abs(found.typical - np.median(fitting)) <= 1
    assert np.mean(fitting >= found.sure) >= 0.98
    assert np.mean(fitting >= found.sure + 2) < 0.99
    assert found.sure < found.typical < found.mean + 5


def test_pools_part_the_memory_by_what_is_filled() -> None:
    """Short contexts take a quarter of the bytes, so a quarter of the memory; no side may be empty."""
    lengths = Lengths([90, *[1] * 3], "x")
    found = pools(COST, lengths, 13300, 50, page=1)

    assert found is not None
    assert found.short_share == pytest.approx(33 / 133)
    assert (found.short, found.long) == (3300 // 11, 10000 // 100)
    assert pools(COST, lengths, 13300, 90, page=1) is None
    assert pools(COST, lengths, 130, 50, page=1) is None


@pytest.mark.parametrize("profile", ["full", "state-int8", "kv-int8"])
def test_sessions_take_what_the_engine_measures(profile: str, tmp_path: Path) -> None:
    """The formula that capacity goes by, against the bytes of a live session as a run records them."""
    run = run_suite(
        prepare(RunRequest(suite="smoke", model="builtin:hybrid", profile=profile, seeds=1)), tmp_path / "r"
    )
    measured = run.manifest().engine.bytes_per_session
    _, config = read_model("builtin:hybrid")
    _, cost = profile_cost(config, profile, "fp32")

    assert cost.fixed == measured["state"] + measured["conv"]
    assert cost.kv(1024, 64) == measured["kv"]


def test_drift_is_none_small_and_large() -> None:
    """The same lengths have moved nowhere; half as long again has, and a library finds the same distance."""
    from scipy.stats import ks_2samp

    draw = np.random.default_rng(1)
    planned = Lengths(np.exp(draw.normal(8, 1, 4000)).astype(int) + 1, "a")
    same = drift(planned, planned)
    assert (same.psi, same.ks, same.p_value, same.reading) == (0.0, 0.0, 1.0, "none")
    again = drift(planned, Lengths(np.exp(draw.normal(8, 1, 3000)).astype(int) + 1, "b"))
    assert again.reading == "none"
    assert again.p_value > 0.01
    longer = Lengths(planned.tokens * 3, "c")
    moved = drift(planned, longer)
    assert moved.reading == "large"
    assert moved.quantiles["p50"] == (planned.quantile(0.5), 3 * planned.quantile(0.5))
    known = ks_2samp(planned.tokens, longer.tokens, method="asymp")
    assert moved.ks == pytest.approx(known.statistic)
    assert moved.p_value < 1e-9
    few = np.array([1, 2, 3, 5, 9]), np.array([2, 4, 6, 8])
    assert ks_two_sample(*few)[0] == pytest.approx(ks_2samp(*few).statistic)
    # Two bins by hand: half below 10 was planned, a quarter is found.
    two = drift(Lengths([10, 20], "p"), Lengths([5, 20, 20, 20], "n"))
    assert two.psi == pytest.approx((0.25 - 0.5) * np.log(0.25 / 0.5) + (0.75 - 0.5) * np.log(0.75 / 0.5))


def test_savings_by_hand() -> None:
    """A prompt shorter than what is shared shares all its tokens but the last."""
    found = savings(Lengths([100, 1000], "x"), requests=10, shared=200, hit_rate=0.5, price=2.0)

    assert found.prefilled == 5500
    assert found.saved == 10 * 0.5 * (99 + 200) / 2
    assert found.money == pytest.approx(found.saved * 2 / 1e6)
    assert found.share == pytest.approx(found.saved / 5500)
    with pytest.raises(RefusedError, match="a rate from 0 to 1"):
        savings(Lengths([1], "x"), requests=10, shared=1, hit_rate=1.5)


def test_the_command(evalgate: Evalgate, published: Path, table: Callable[..., Path], tmp_path: Path) -> None:
    """Profiles side by side, the recall of runs, what moved, and what prefixes save, as a table and as JSON."""
    run_suite(prepare(RunRequest(suite="smoke", model="builtin:hybrid", profile="state-int8", seeds=1)), tmp_path / "r")
    lengths, new = table([8192] * 20 + [131072]), table([16384] * 20 + [131072], name="new.csv")
    words = ("capacity", published, "--gpu", "H200", "--weights", "98GB", "--lengths", lengths, "--new", new)
    more = ("--run", tmp_path / "r", "--profiles", "full,state-int8", "--requests", 1000, "--shared", 500, "--price", 1)
    body = json.loads(evalgate(*words, *more, "--json").out)
    full, small = body["profiles"]

    assert body["memory"] == {"cache_bytes": int((141 - 98) * 10**9 * 0.9), "weights_bytes": 98 * 10**9}
    assert full["sure"] < small["sure"]
    assert full["recall"] is None
    assert small["recall"].keys() == {"front", "middle", "back"}
    assert body["today"][0]["sure"] < full["sure"]
    assert body["drift"]["reading"] == "large"
    assert body["savings"]["saved"] == 500_000
    told = evalgate(*words, *more)
    assert told.code == ExitCode.PASS
    for said in ("state-int8@1.0.0", "sessions were planned", "PSI", "a changed template costs 500 once"):
        assert said in told.out


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([100, 0], "row 2 has the length 0"),
        ([-5], "has the length -5"),
        ([1.5], "has the length 1.5"),
        ([1, None], "row 2 has the length nan"),
        ([10**12], "expected whole tokens from 1 to"),
        (["many"], "has the length many"),
        ([], "found no lengths"),
    ],
)
def test_lengths_that_are_none(evalgate: Evalgate, table: Callable[..., Path], values: list[Any], said: str) -> None:
    """Each is named by its row, and nothing is reckoned."""
    ended = evalgate("capacity", "builtin:hybrid", "--memory", "1GB", "--lengths", table(values))

    assert ended.code == ExitCode.REFUSED
    assert said in ended.err


def test_what_cannot_be_reckoned_is_refused(
    evalgate: Evalgate, published: Path, table: Callable[..., Path], tmp_path: Path
) -> None:
    """Machines, columns, profiles and models that are not there, and memory that does not do."""
    lengths = table([1000, 2000])
    for words, said in (
        (("--memory", "1GB"), "--lengths is missing"),
        (("--lengths", lengths), "name the machine as --gpu or as --memory"),
        (("--lengths", lengths, "--gpu", "h200", "--memory", "1GB"), "one of them"),
        (("--lengths", lengths, "--gpu", "h2000"), "did you mean h200"),
        (("--lengths", lengths, "--memory", "lots"), "expected bytes such as"),
        (("--lengths", lengths, "--memory", "-1GB"), "expected bytes such as"),
        (("--lengths", lengths, "--memory", "1KB"), "leaves nothing for sessions"),
        (("--lengths", lengths, "--memory", "4.1MB"), "a session of 2,000 tokens takes"),
        (("--lengths", lengths, "--memory", "1GB", "--share", "2"), "expected above 0 and at most 1"),
        (("--lengths", lengths, "--memory", "1GB", "--profiles", "ful"), "did you mean full"),
        (("--lengths", lengths, "--memory", "1GB", "--dtype", "fp9"), "--dtype 'fp9'"),
        (("--lengths", lengths, "--memory", "1GB", "--column", "age"), "expected column 'age'"),
        (("--lengths", tmp_path / "none.csv", "--memory", "1GB"), "cannot be read as a table"),
        (("--lengths", lengths, "--memory", "1GB", "--run", tmp_path / "none"), "does not exist"),
    ):
        ended = evalgate("capacity", "builtin:hybrid", *words)
        assert ended.code not in (ExitCode.PASS, ExitCode.BLOCK), words
        assert said in ended.err, (words, ended.err)
        assert "Traceback" not in ended.err
    assert "--weights 98GB" in evalgate("capacity", published, "--gpu", "h200", "--lengths", lengths).err
    parquet = tmp_path / "lengths.parquet"
    pd.DataFrame({"when": [1], "length": [77]}).to_parquet(parquet)
    assert read_lengths(parquet).tokens.tolist() == [77]
    assert (read_bytes("24GiB", "x"), read_bytes("7", "x"), gpu_memory("RTX 4090")) == (24 * 2**30, 7, 24 * 10**9)
    with pytest.raises(DoesNotFitError):
        ceiling(COST, Lengths([5], "x"), 14, page=1)
