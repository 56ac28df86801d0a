"""Profiles: where codecs act, what caches still hold, and what the engine says that it did."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from evalgate.engine.compression import STATE_FORMS, Compression, KvDtype, StateCodec, StateDtype
from evalgate.engine.llm import LLM
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.request import Request
from evalgate.engine.visibility import ContextSpan
from evalgate.kernels.state_codec import Encoded

NEAR = 1e-4
"""Logits of the same rounded latents from passes of other shapes, in float32."""

LOSSY = [
    Compression(state_dtype="bf16", codec_every=64),
    Compression(state_dtype="int8", codec_every=64),
    Compression(state_dtype="int4", codec_every=128),
    Compression(state_rank=2),
    Compression(state_rank=4, codec_every=64),
    Compression(state_rank=2, state_dtype="int8", codec_every=64),
    Compression(state_dtype="int8"),
    Compression(state_dtype="int4", codec_every=64, error_feedback=True),
    Compression(state_dtype="int4", error_feedback=True),
]


@pytest.fixture(scope="module")
def checkpoint(tiny_models: dict[str, Path]) -> Checkpoint:
    """The tiny hybrid."""
    return load_checkpoint(tiny_models["hybrid"])


def engine(checkpoint: Checkpoint, compression: Compression | None = None, chunk: int = 1024) -> LLM:
    """An engine with poisoned pools."""
    return LLM(checkpoint, compression=compression, max_tokens=2000, max_sessions=6, prefill_chunk=chunk, poison=True)


def words(count: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 300, (count,), generator=generator).tolist()


def name(compression: Compression) -> str:
    """Short name for a test id."""
    rank = f"-rank{compression.state_rank}" if compression.state_rank else ""
    fed = "-feedback" if compression.error_feedback else ""
    return f"{compression.state_dtype}{rank}{fed}-{compression.codec_every or 'once'}"


class ByHand:
    """An uncompressed engine whose states are rounded from outside, at the places that DESIGN names."""

    def __init__(self, checkpoint: Checkpoint, compression: Compression) -> None:
        self.llm = engine(checkpoint)
        self.codec = StateCodec(compression)
        shape = self.llm.states.recurrent[:, 0].shape
        self.error = Encoded(tuple(torch.zeros(s.shape, dtype=s.dtype) for s in self.codec.error_specs(tuple(shape))))

    def round(self, slot: int) -> None:
        """Round the state of one slot."""
        pool = self.llm.states.recurrent
        pool[:, slot], self.error = self.codec.round_with_error(pool[:, slot], self.error)

    def run(self, prompt: list[int], fork_at: int, decode: list[int]) -> Tensor:
        """Logits after a prompt whose fork begins at ``fork_at``, and after each decode step."""
        llm, every = self.llm, self.codec.every
        session = llm.start()
        while session.tokens < len(prompt):
            if every is None and session.tokens == fork_at:
                self.round(session.slot)
            llm.extend(session, prompt[session.tokens : (session.tokens // 64 + 1) * 64])
            if every is not None and session.tokens % every == 0:
                self.round(session.slot)
        logits = [llm.logits([session])]
        for token in decode:
            with torch.inference_mode():
                llm.runner.decode([session], [token], 0)
            self.round(session.slot)
            logits.append(llm.logits([session]))
        return torch.cat(logits)


@pytest.mark.parametrize("chunk", [64, 192, 1024])
@pytest.mark.parametrize("compression", LOSSY, ids=name)
def test_codec_acts_on_the_grid_or_at_the_fork_and_after_each_step(
    checkpoint: Checkpoint, compression: Compression, chunk: int
) -> None:
    """Whatever the prefill chunk, states are rounded at exactly the stated places, in the fork's own tail too."""
    prompt, decode, at = words(480), words(4, seed=1), 320
    expected = ByHand(checkpoint, compression).run(prompt, at, decode)
    llm = engine(checkpoint, compression, chunk)
    parent = llm.prefill(prompt[:at])
    (fork,) = llm.fork(parent, [prompt[at:]], ContextSpan(4, 470))
    logits = [llm.logits([fork])]
    for token in decode:
        with torch.inference_mode():
            llm.runner.decode([fork], [token], 0)
        logits.append(llm.logits([fork]))
    # Rounding may fall on the other side of a step where two orders of summation differ in the last bit.
    torch.testing.assert_close(torch.cat(logits), expected, atol=2e-3, rtol=0)
    plain = ByHand(checkpoint, Compression()).run(prompt, at, decode)
    assert (expected - plain).abs().max() > 4e-3, "this codec changes too little for the test to see where it acts"


@pytest.mark.parametrize("compression", LOSSY, ids=name)
def test_rows_of_unequal_length_are_rounded_as_if_alone(checkpoint: Checkpoint, compression: Compression) -> None:
    """A row that has ended before a grid position is not rounded there with the others."""
    llm = engine(checkpoint, compression)
    parent = llm.prefill(words(192))
    tails = [words(n, seed=n) for n in (1, 63, 64, 65, 140)]
    forks = llm.fork(parent, tails, ContextSpan(0, 192))
    together = llm.states.recurrent[:, [fork.slot for fork in forks]].clone()
    llm.release(*forks)
    for row, tail in enumerate(tails):
        (fork,) = llm.fork(parent, [tail], ContextSpan(0, 192))
        torch.testing.assert_close(llm.states.recurrent[:, fork.slot], together[:, row], atol=2e-3, rtol=1e-3)
        llm.release(fork)


def test_a_codec_that_acts_once_leaves_the_parent_alone(checkpoint: Checkpoint) -> None:
    """The parent goes on with its full state, so later asks of the same haystack lose nothing to earlier ones."""
    plain, lossy = engine(checkpoint), engine(checkpoint, Compression(state_rank=1))
    a, b = plain.prefill(words(128)), lossy.prefill(words(128))
    lossy.fork(b, [words(3)], ContextSpan(0, 128))
    plain.extend(a, words(64, seed=1))
    lossy.extend(b, words(64, seed=1))
    assert torch.equal(plain.logits([a]), lossy.logits([b]))


def test_off_grid_stretches_are_rounded_where_they_reach_the_grid(checkpoint: Checkpoint) -> None:
    """A session that stopped at 100 tokens and goes on is rounded at 128, as one that did not stop."""
    compression = Compression(state_dtype="int4", codec_every=64)
    whole, cut = engine(checkpoint, compression), engine(checkpoint, compression)
    a, b = whole.prefill(words(200)), cut.prefill(words(100))
    cut.extend(b, words(200)[100:])
    torch.testing.assert_close(whole.logits([a]), cut.logits([b]), atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("kv_dtype", "stored"), [("bf16", torch.bfloat16), ("int8", torch.int8), ("fp8", torch.float8_e4m3fn)]
)
def test_cache_is_in_its_dtype_and_read_the_same_by_every_path(
    checkpoint: Checkpoint, kv_dtype: KvDtype, stored: torch.dtype
) -> None:
    """What is stored has the dtype; one piece, chunks and decode steps read the same rounded latents."""
    compression = Compression(kv_dtype=kv_dtype)
    llm, cut = engine(checkpoint, compression), engine(checkpoint, compression, chunk=64)
    assert llm.pages.columns[0].dtype == stored
    expected = llm.score(words(300))
    torch.testing.assert_close(cut.score(words(300)), expected, atol=NEAR, rtol=0)
    session = llm.prefill(words(300)[:-1])
    with torch.inference_mode():
        llm.runner.decode([session], words(300)[-1:], 0)
    torch.testing.assert_close(llm.logits([session])[0], expected[-1], atol=NEAR, rtol=0)
    assert (engine(checkpoint).score(words(300)) - expected).abs().max() > NEAR


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_stored_states_are_in_the_snapshot_dtype(checkpoint: Checkpoint, dtype: StateDtype) -> None:
    """A live state is left alone, a stored one takes fewer bytes, and what comes back is that state once rounded."""
    llm = LLM(checkpoint, compression=Compression(snapshot_dtype=dtype), max_tokens=400, poison=True)
    live = llm.states.parts(llm.prefill(words(192)).slot)
    plain = engine(checkpoint)
    assert torch.equal(live[0], plain.states.parts(plain.prefill(words(192)).slot)[0])
    llm.run([Request(tokens=words(200), max_tokens=1)])
    (node,) = llm.prefixes.stored()
    assert node.prefix is not None
    restored = llm.states.parts(llm.memory.restore(node.prefix).slot)
    assert torch.equal(restored[0], STATE_FORMS[dtype].round_trip(live[0]))
    assert not torch.equal(restored[0], live[0])
    assert torch.equal(restored[1], live[1])
    share = {"bf16": 1 / 2, "int8": (16 + 4) / 64, "int4": (8 + 4) / 64}[dtype]
    assert llm.prefixes.snapshots.slot_bytes == live[0].nbytes * share + live[1].nbytes


def test_cut_fork_owns_fewer_pages_and_its_parent_keeps_its_own(checkpoint: Checkpoint) -> None:
    """After the hole is cut the fork holds the kept latents only, in pages of its own; the parent's stay."""
    llm = engine(checkpoint, Compression(kv_keep=0.5))
    parent = llm.prefill(words(640))
    held = list(parent.pages)
    full, (fork,) = llm.memory.measure(parent), llm.fork(parent, [words(70)], ContextSpan(10, 700))
    assert (fork.tokens, fork.cached) == (710, 710 - 345)
    assert not set(fork.pages) & set(parent.pages)
    assert len(fork.pages) == 6
    assert (parent.pages, parent.cached) == (held, 640)
    assert llm.memory.measure(fork).kv == 6 * llm.pages.page_bytes < full.kv
    llm.release(parent)
    llm.generate([fork], 5)
    llm.release(fork)
    assert llm.pages.free == llm.budget.pages


def test_window_lets_pages_go(checkpoint: Checkpoint) -> None:
    """A session under a window holds the pages of its last tokens and no more, however long it grows."""
    llm = engine(checkpoint, Compression(kv_window=128))
    before = llm.pages.free
    session = llm.prefill(words(1500))
    assert before - llm.pages.free <= 4
    llm.generate([session], 100)
    assert before - llm.pages.free <= 4
    llm.release(session)
    assert llm.pages.free == before


@pytest.mark.parametrize(
    ("compression", "state", "kv"),
    [
        pytest.param(Compression(), 1.0, 1.0, id="full"),
        pytest.param(Compression(state_dtype="bf16", codec_every=64), 0.5, 1.0, id="bf16"),
        pytest.param(Compression(state_dtype="int8", codec_every=64), (16 + 4) / 64, 1.0, id="int8"),
        pytest.param(Compression(state_dtype="int4", codec_every=64), (8 + 4) / 64, 1.0, id="int4"),
        pytest.param(Compression(state_rank=2), 2 * 32 / 256, 1.0, id="rank-2"),
        pytest.param(Compression(state_rank=2, state_dtype="bf16"), 32 / 256, 1.0, id="rank-2-bf16"),
        pytest.param(Compression(state_rank=2, state_dtype="int8"), 2 * (32 + 8) / 1024, 1.0, id="rank-2-int8"),
        pytest.param(
            Compression(state_dtype="int8", error_feedback=True), (16 + 4 + 8 + 4) / 64, 1.0, id="int8-feedback"
        ),
        pytest.param(
            Compression(state_dtype="int4", error_feedback=True), (8 + 4 + 8 + 4) / 64, 1.0, id="int4-feedback"
        ),
        pytest.param(Compression(kv_dtype="bf16"), 1.0, 0.5, id="kv-bf16"),
        pytest.param(Compression(kv_dtype="int8"), 1.0, (40 + 8) / 160, id="kv-int8"),
        pytest.param(Compression(kv_dtype="fp8"), 1.0, (40 + 8) / 160, id="kv-fp8"),
        pytest.param(Compression(kv_keep=0.75), 1.0, 23 / 30, id="kv-keep"),
        pytest.param(Compression(kv_window=512), 1.0, 8 / 30, id="kv-window"),
    ],
)
def test_bytes_of_a_session_are_counted_not_promised(
    checkpoint: Checkpoint, compression: Compression, state: float, kv: float
) -> None:
    """Bytes shrink as the settings say, as counted on a live session, and measuring leaves nothing behind."""
    whole = engine(checkpoint).measure(1920)
    llm = engine(checkpoint, compression)
    found = llm.measure(1920)
    assert found.state == pytest.approx(whole.state * state)
    assert found.kv == pytest.approx(whole.kv * kv)
    assert found.conv == whole.conv == 3 * 3 * 96 * 4
    assert found.total == found.state + found.conv + found.kv
    assert (llm.states.free, llm.pages.free) == (6, llm.budget.pages)


def test_effective_settings_are_read_from_the_live_objects(checkpoint: Checkpoint) -> None:
    """What is reported is what the pools and the codec are, not what was asked for."""
    settings = Compression(
        state_dtype="int8", codec_every=64, error_feedback=True, snapshot_dtype="int4", kv_dtype="fp8"
    )
    llm = engine(checkpoint, settings, chunk=128)
    found = llm.effective_config()
    state = {"dtype": "int8", "scales": "per-channel", "rank": None, "codec_every": 64, "error_feedback": True}
    assert found["state"] == state
    assert found["snapshot"] == {"dtype": "int4"}
    assert found["kv"] == {"dtype": "fp8", "keep": 1.0, "window": None}
    llm.memory.codec.dtype = "int4"
    assert llm.effective_config()["state"]["dtype"] == "int4"


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_error_feedback_gives_back_what_rounding_took(dtype: StateDtype) -> None:
    """Rounded again and again, a state is right on average with feedback; without, it errs alike each time."""
    torch.manual_seed(0)
    state = torch.randn(2, 16, 16)

    def mean_error(feedback: bool) -> float:
        codec = StateCodec(Compression(state_dtype=dtype, error_feedback=feedback))
        error = Encoded(tuple(torch.zeros(spec.shape, dtype=spec.dtype) for spec in codec.error_specs(state.shape)))
        kept = []
        for _ in range(32):
            rounded = codec.round_with_error(state, error)
            kept.append(rounded.state)
            error = rounded.error
        return float((torch.stack(kept).mean(dim=0) - state).norm() / state.norm())

    assert mean_error(feedback=True) < 0.2 * mean_error(feedback=False)
