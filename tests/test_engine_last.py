"""The last layer of a prefill works out each row's last token only: the same as where it works out all of them."""

from __future__ import annotations

import fixtures_engine
import pytest
import torch

from evalgate.engine.compression import Compression
from evalgate.engine.llm import LLM
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.visibility import ContextSpan

NEAR = 1e-4
"""Logits of size 1 from products of other shapes, in float32."""
ENDS = {"mla": ["linear_attention", "full_attention"] * 2, "kda": ["full_attention", "linear_attention"] * 2}
SETTINGS = {
    "plain": Compression(),
    "hole": Compression(kv_keep=0.5),
    "window": Compression(kv_window=100),
}


@pytest.fixture(scope="module", params=ENDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A tiny model that ends in a layer of either kind."""
    folder = tmp_path_factory.mktemp("ends") / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fixtures_engine.TINY_SHAPES, "ends", {"layer_types": ENDS[request.param]})
        return load_checkpoint(fixtures_engine.save_tiny_model(folder, "ends"))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("tails", [(70, 70), (1, 64, 70, 199)], ids=str)
def test_the_last_token_is_that_of_all_tokens(
    checkpoint: Checkpoint, tails: tuple[int, ...], setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one length or of several, alone and with what a profile hides from them."""
    llm = LLM(checkpoint, compression=SETTINGS[setting], max_tokens=1000, max_sessions=10, poison=True)
    words = torch.randint(5, 300, (600,), generator=torch.Generator().manual_seed(5)).tolist()
    parent, context = llm.prefill(words[:256]), ContextSpan(3, 256)
    asked = [words[256 : 256 + tail] for tail in tails]
    found = llm.logits(llm.fork(parent, asked, context))
    prefill_pass = llm.runner.prefill_pass
    monkeypatch.setattr(
        llm.runner, "prefill_pass", lambda sessions, rows, *, whole: prefill_pass(sessions, rows, whole=not whole)
    )
    torch.testing.assert_close(found, llm.logits(llm.fork(parent, asked, context)), atol=NEAR, rtol=0)
