"""What sessions cost: the published model's figures to the byte, and the formula against live tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fixtures_published import PUBLISHED

from evalgate.backends.settings import parse_settings
from evalgate.engine import budget
from evalgate.engine.budget import SessionCost, attention_only, plan_pools, session_cost
from evalgate.engine.compression import Compression
from evalgate.engine.config import ModelConfig, parse_config
from evalgate.engine.llm import DTYPES, LLM, DtypeName
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.errors import DoesNotFitError
from evalgate.gates.profile import library, load_profile

KIB, MIB, GIB = 2**10, 2**20, 2**30
CONTEXTS = (8 * KIB, 128 * KIB, MIB)
"""Tokens: 8K, 128K, 1M."""


@pytest.fixture(scope="module")
def published() -> ModelConfig:
    """The shape of the published 48B model."""
    return parse_config(PUBLISHED, "config.json")


@pytest.fixture(scope="module")
def checkpoint(tiny_models: dict[str, Path]) -> Checkpoint:
    """The tiny hybrid, whose states are 16 x 16."""
    return load_checkpoint(tiny_models["hybrid"])


def test_cost_of_a_session_of_the_published_model(published: ModelConfig) -> None:
    """bfloat16 with states in float32: the parts to the byte, and the whole at three lengths."""
    cost = session_cost(published)
    assert cost.kv_token == (512 + 64) * 2 * 7 == 8_064
    assert cost.state == 20 * 32 * 128 * 128 * 4 == 41_943_040
    assert cost.conv == 20 * (3 * 4096) * 3 * 2 == 1_474_560
    assert cost.fixed == cost.live == cost.snapshot == 43_417_600
    assert [cost.session(tokens) for tokens in CONTEXTS] == [109_477_888, 1_100_382_208, 8_499_134_464]
    mib = [round(cost.session(tokens) / MIB, 1) for tokens in CONTEXTS]
    assert mib == [104.4, 1049.4, 8105.4]
    assert round(cost.session(MIB) / GIB, 2) == 7.92


def test_tokens_are_paid_in_whole_pages(published: ModelConfig) -> None:
    """One token more than fits begins a page."""
    cost = session_cost(published)
    assert cost.session(0, page=64) == cost.fixed
    assert cost.session(1, page=64) == cost.session(64, page=64) == cost.fixed + 64 * 8_064
    assert cost.session(65, page=64) == cost.fixed + 128 * 8_064


@pytest.mark.parametrize(
    ("kept", "token", "sizes"),
    [
        ("mla", 31_104, ["243 MiB", "3.80 GiB", "30.4 GiB"]),
        ("gqa-8", 110_592, ["864 MiB", "13.5 GiB", "108 GiB"]),
        ("mha", 552_960, ["4.22 GiB", "67.5 GiB", "540 GiB"]),
    ],
)
def test_cost_of_the_same_layers_without_states(
    published: ModelConfig, kept: str, token: int, sizes: list[str]
) -> None:
    """27 layers of full attention, by what they keep of a token."""
    cost = attention_only(published)[kept]
    assert (cost.kv_token, cost.fixed) == (token, 0)
    assert [words(cost.session(tokens)) for tokens in CONTEXTS] == sizes


def words(size: int) -> str:
    """Three digits, in MiB below one GiB."""
    unit, name = (GIB, "GiB") if size >= GIB else (MIB, "MiB")
    return f"{float(f'{size / unit:.3g}'):{'.2f' if size / unit < 10 else 'g'}} {name}"


def test_cost_of_snapshots_along_a_context(published: ModelConfig) -> None:
    """Every 64 tokens a snapshot costs 84 times the latents; at 5,384 tokens apart they cost the same."""
    cost = session_cost(published)
    found = {interval: round(cost.snapshot_per_token(interval)) for interval in (64, 128, 528, 1024, 5384, 32 * KIB)}
    assert found == {64: 678_400, 128: 339_200, 528: 82_230, 1024: 42_400, 5384: 8_064, 32 * KIB: 1_325}
    assert round(found[64] / cost.kv_token) == 84
    assert round(cost.break_even) == 5_384
    assert cost.session(8 * KIB, snapshots=2) == cost.session(8 * KIB) + 2 * 43_417_600
    assert SessionCost(kv_token=0, snapshot=1).break_even == float("inf")


@pytest.mark.parametrize(
    ("compression", "state", "kv_token"),
    [
        pytest.param(Compression(state_dtype="bf16", codec_every=64), 20_971_520, 8_064, id="bf16"),
        pytest.param(Compression(state_dtype="int8", codec_every=64), 20 * 32 * 128 * (128 + 4), 8_064, id="int8"),
        pytest.param(Compression(state_dtype="int4", codec_every=64), 20 * 32 * 128 * (64 + 4), 8_064, id="int4"),
        pytest.param(Compression(state_rank=8), 20 * 32 * 8 * 256 * 4, 8_064, id="rank-8"),
        pytest.param(Compression(kv_dtype="int8"), 41_943_040, 7 * (576 + 8), id="kv-int8"),
    ],
)
def test_cost_of_a_compressed_session_of_the_published_model(
    published: ModelConfig, compression: Compression, state: int, kv_token: int
) -> None:
    """Codes, scales and factors are counted; slots of the pool, and snapshots, stay as the profile has them."""
    cost = session_cost(published, compression)
    assert (cost.state, cost.kv_token) == (state, kv_token)
    assert (cost.conv, cost.live, cost.snapshot) == (1_474_560, 43_417_600, 43_417_600)


SHIPPED = library().names()
OTHERS = {
    "int8-rank-4-by-hand": Compression(state_dtype="int8", state_rank=4),
    "int4-feedback-snapshot-int8-by-hand": Compression(
        state_dtype="int4", codec_every=64, error_feedback=True, snapshot_dtype="int8"
    ),
    "kv-int8-window-100-by-hand": Compression(kv_dtype="int8", kv_window=100),
}
"""What profiles may also say, and none that is shipped does."""


@pytest.mark.parametrize("page", [64, 48])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("name", [*SHIPPED, *OTHERS])
def test_the_formula_is_what_live_tensors_take(checkpoint: Checkpoint, name: str, dtype: DtypeName, page: int) -> None:
    """Bytes counted on a session at awkward lengths, on a slot, a page and a snapshot are those of the formula."""
    compression = OTHERS.get(name) or parse_settings(load_profile(name).sections, name, dtype).compression
    llm = LLM(checkpoint, dtype=dtype, compression=compression, max_tokens=1200, max_sessions=2, page=page)
    states = torch.float64 if dtype == "fp64" else torch.float32
    cost = session_cost(checkpoint.config, compression, dtype=DTYPES[dtype], state_dtype=states)
    for tokens in (1, 47, 64, 65, 99, 100, 101, 147, 163, 511, 512, 513, 559, 575, 577, 1200):
        measured = llm.measure(tokens)
        assert measured == (cost.state, cost.conv, cost.kv(tokens, page)), f"at {tokens} tokens"
        assert measured.total == cost.session(tokens, page=page)
    assert llm.states.slot_bytes == cost.live
    assert llm.pages.page_bytes == page * cost.kv_token
    assert llm.prefixes.snapshots.slot_bytes == cost.snapshot


@pytest.mark.parametrize("free", [2, 16, 1024], ids=lambda free: f"{free}-gib")
@pytest.mark.parametrize("keep", [1.0, 0.5])
def test_pools_stay_within_their_share_of_memory(published: ModelConfig, free: int, keep: float) -> None:
    """Slots, snapshots and pages together fit, one page more for each does not or is not wanted."""
    compression, page = Compression(kv_keep=keep), 64
    planned = plan_pools(
        published,
        compression,
        torch.bfloat16,
        torch.float32,
        page=page,
        tokens=None,
        sessions=16,
        snapshots=4,
        free=free * GIB,
    )
    cost = session_cost(published, compression)
    taken = 17 * cost.live + 5 * cost.snapshot + planned.pages * page * cost.kv_token
    assert taken <= budget.SHARE * free * GIB
    assert planned.slots == 16
    if planned.limit == "memory":
        assert taken > budget.SHARE * free * GIB - page * cost.kv_token
        assert planned.tokens < published.window
    else:
        assert planned.tokens == published.window
        assert planned.pages >= 2 * published.window // page
    assert (planned.limit == "memory") == (free < 1024)


def test_more_than_memory_holds_is_refused_with_the_figures(published: ModelConfig) -> None:
    """Too many sessions, too many snapshots, or too many tokens: what was asked for and what there is."""

    def plan(sessions: int, snapshots: int, tokens: int | None) -> None:
        plan_pools(
            published,
            Compression(),
            torch.bfloat16,
            torch.float32,
            page=64,
            tokens=tokens,
            sessions=sessions,
            snapshots=snapshots,
            free=GIB,
        )

    needed = 43_417_600 * (17 + 1)
    with pytest.raises(DoesNotFitError, match=f"16 sessions and 0 snapshots need {needed:,} bytes of state"):
        plan(16, 0, None)
    with pytest.raises(DoesNotFitError, match="2 sessions and 20 snapshots need"):
        plan(2, 20, None)
    with pytest.raises(DoesNotFitError, match=r"100000 tokens asked for, at most \d+ fit \(memory\)"):
        plan(2, 0, 100_000)
    with pytest.raises(DoesNotFitError, match=r"2000000 tokens asked for"):
        plan(2, 0, 2_000_000)
