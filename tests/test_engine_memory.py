"""Pools: slots and pages are zeroed, copied, counted and never confused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evalgate.engine.compression import Compression, KvDtype
from evalgate.engine.config import ModelConfig, read_config
from evalgate.engine.page_pool import PagePool
from evalgate.engine.state_pool import StatePool
from evalgate.errors import DoesNotFitError


@pytest.fixture(scope="module")
def config(tiny_models: dict[str, Path]) -> ModelConfig:
    """Sizes of the tiny hybrid."""
    return read_config(tiny_models["hybrid"])


def state_pool(config: ModelConfig, slots: int = 3) -> StatePool:
    """A poisoned pool."""
    return StatePool(config, slots, state_dtype=torch.float32, conv_dtype=torch.float32, poison=True)


def page_pool(config: ModelConfig, pages: int = 6, *, page: int = 4, kv_dtype: KvDtype = "auto") -> PagePool:
    """A poisoned pool of small pages."""
    codec = Compression(kv_dtype=kv_dtype).latent_codec(config, torch.float32)
    return PagePool(config.mla_layers, pages, page=page, codec=codec, poison=True)


def test_slot_zero_is_never_handed_out_and_slots_run_out(config: ModelConfig) -> None:
    """All slots but scratch can be had, each once; then the message says what to do."""
    pool = state_pool(config)
    assert sorted(pool.allocate(owner) for owner in (1, 2, 3)) == [1, 2, 3]
    with pytest.raises(DoesNotFitError, match="release a session"):
        pool.allocate(4)


def test_reused_slot_is_zero_although_the_freed_one_was_poisoned(config: ModelConfig) -> None:
    """What another session left, and the poison that marks it free, are gone when a slot is handed out again."""
    pool = state_pool(config)
    slot = pool.allocate(1)
    pool.recurrent[:, slot] = 7.0
    pool.conv[:, slot] = 7.0
    pool.release(slot, 1)
    assert pool.recurrent[:, slot].isnan().all()
    assert pool.conv[:, slot].isnan().all()
    assert pool.allocate(2) == slot
    assert not pool.recurrent[:, slot].any()
    assert not pool.conv[:, slot].any()
    pool.check(slot, 2, 0)


def test_tag_catches_another_owner_and_another_token_count(config: ModelConfig) -> None:
    """A slot is only used by its owner, at exactly the tokens that it has seen."""
    pool = state_pool(config)
    slot = pool.allocate(1)
    pool.advance(slot, 64)
    pool.check(slot, 1, 64)
    for owner, tokens in ((2, 64), (1, 63), (1, 65)):
        with pytest.raises(AssertionError, match=f"session {owner} expected {tokens} tokens"):
            pool.check(slot, owner, tokens)
    with pytest.raises(AssertionError, match="belongs to 1"):
        pool.release(slot, 2)


def test_copied_slot_is_equal_and_apart(config: ModelConfig) -> None:
    """A fork's state has its parent's values and count, and goes its own way."""
    pool = state_pool(config)
    source, target = pool.allocate(1), pool.allocate(2)
    pool.recurrent[:, source].normal_()
    pool.conv[:, source].normal_()
    pool.advance(source, 128)
    pool.copy(source, target)
    pool.check(target, 2, 128)
    assert torch.equal(pool.recurrent[:, source], pool.recurrent[:, target])
    assert torch.equal(pool.conv[:, source], pool.conv[:, target])
    pool.recurrent[:, target] += 1
    assert not torch.equal(pool.recurrent[:, source], pool.recurrent[:, target])


def test_page_zero_is_never_handed_out_and_pages_run_out(config: ModelConfig) -> None:
    """All pages but scratch can be had, lowest first, and a request that cannot be met takes none."""
    pool = page_pool(config)
    assert pool.allocate(4) == [1, 2, 3, 4]
    with pytest.raises(DoesNotFitError, match="3 pages of 4 tokens wanted, 2 free"):
        pool.allocate(3)
    assert pool.free == 2


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_shared_page_lives_until_its_last_holder_lets_go(config: ModelConfig, kv_dtype: KvDtype) -> None:
    """References are counted; the page is poisoned and free only after the last release, and no release is double."""
    pool = page_pool(config, kv_dtype=kv_dtype)
    pages = pool.allocate(2)
    rows = pool.locate(pages, 0, 8)
    pool.write(0, rows, torch.randn(8, config.latent_row))
    pool.retain(pages)
    pool.release(pages)
    assert pool.read(0, rows).isfinite().all()
    pool.release(pages)
    assert pool.read(0, rows).isnan().all()
    assert pool.free == 6
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(pages)
    with pytest.raises(AssertionError, match="shared after it was released"):
        pool.retain(pages)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("table", [[1, 2, 3], [5, 2, 4]], ids=["run", "scattered"])
def test_rows_come_back_from_any_pages(config: ModelConfig, table: list[int], kv_dtype: KvDtype) -> None:
    """Latents written across pages, in a row or scattered, are read back by position, whole or in part."""
    torch.manual_seed(0)
    pool = page_pool(config, kv_dtype=kv_dtype)
    pool.allocate(6)
    latents = torch.randn(10, config.latent_row)
    pool.write(0, pool.locate(table, 0, 10), latents)
    expected = pool.codec.as_stored(latents)
    for first, count in ((0, 10), (3, 1), (3, 6), (4, 4), (9, 1), (2, 0)):
        assert torch.equal(pool.read(0, pool.locate(table, first, count)), expected[first : first + count])


def test_row_numbers_pass_two_to_the_31(config: ModelConfig) -> None:
    """Pages far into a pool larger than any 32-bit offset have exact rows, without needing its memory."""
    pool = page_pool(config, page=64)
    far = 2**31 // 64 + 5
    run = pool.locate([far, far + 1], 70, 3)
    assert run == slice(far * 64 + 70, far * 64 + 73)
    scattered = pool.locate([3, far], 63, 2)
    assert isinstance(scattered, torch.Tensor)
    assert scattered.dtype == torch.int64
    assert scattered.tolist() == [3 * 64 + 63, far * 64]
