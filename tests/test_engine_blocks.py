"""A KDA layer takes a pass block by block; how long a block is shows nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from evalgate.engine.compression import Compression
from evalgate.engine.llm import LLM
from evalgate.engine.loader import Checkpoint, load_checkpoint

ROUNDING = 1e-5
"""Logits of size 1 where products of other shapes come before the core and after it."""
TAILS = (1, 63, 64, 65, 130, 199)


@pytest.fixture(scope="module")
def checkpoint(tiny_models: dict[str, Path]) -> Checkpoint:
    """The tiny hybrid: 32 channels of queries for each row and token."""
    return load_checkpoint(tiny_models["hybrid"])


class Found(NamedTuple):
    """What forks of unequal tails come to."""

    states: Tensor
    tails: Tensor
    logits: Tensor


def run(checkpoint: Checkpoint, compression: Compression) -> Found:
    """A prompt off the grid in two passes, then forks whose tails share padded passes."""
    llm = LLM(checkpoint, compression=compression, max_tokens=1000, max_sessions=8, prefill_chunk=320, poison=True)
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(5, 300, (1000,), generator=generator).tolist()
    forks = llm.fork(llm.prefill(words[:400]), [words[400 : 400 + tail] for tail in TAILS])
    slots = [fork.slot for fork in forks]
    return Found(llm.states.recurrent[:, slots].clone(), llm.states.conv[:, slots].clone(), llm.logits(forks))


@pytest.mark.parametrize("compression", [Compression(), Compression(state_dtype="int8", codec_every=128)], ids=str)
def test_blocks_of_any_length_make_one_pass(
    checkpoint: Checkpoint, compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 64 tokens, of 128 and of a whole pass: one state, bit by bit, with padded rows and with a codec."""
    whole = run(checkpoint, compression)
    assert whole.states.isfinite().all()
    for block in (1, 128 * 32 * len(TAILS)):
        monkeypatch.setattr("evalgate.engine.kda_core.BLOCK", block)
        found = run(checkpoint, compression)
        assert torch.equal(found.tails, whole.tails)
        assert torch.equal(found.states, whole.states)
        torch.testing.assert_close(found.logits, whole.logits, atol=ROUNDING, rtol=0)
