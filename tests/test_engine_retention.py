"""What `evalgate state` measures, against slow sums of its own: float64, token by token, no kernel of the engine."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from evalgate.engine.compression import Compression, StateCodec
from evalgate.engine.llm import LLM
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.retention import Retention, measure_retention, stops
from evalgate.errors import CheckpointError, DoesNotFitError

Array = NDArray[np.float64]
TOKENS = 1300
"""Two prefill passes of the engine, and a tail that is off the grid."""


CODECS = {
    "int4": Compression(state_dtype="int4", codec_every=128),
    "rank": Compression(state_rank=3),
    "bf16": Compression(state_dtype="bf16", codec_every=64),
    "feedback": Compression(state_dtype="int4", codec_every=64, error_feedback=True),
}

Change = Callable[[str, torch.Tensor], torch.Tensor]
Changed = Callable[[Change], Checkpoint]


@pytest.fixture(scope="module")
def changed(tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Changed:
    """``changed(change)``: the tiny hybrid whose stored tensors went through ``change(name, tensor)``."""

    def make(change: Change) -> Checkpoint:
        folder = tmp_path_factory.mktemp("changed")
        shutil.copy(tiny_models["hybrid"] / "config.json", folder)
        tensors = load_file(tiny_models["hybrid"] / "model.safetensors")
        new = {name: change(name, tensor).contiguous() for name, tensor in tensors.items()}
        save_file(new, folder / "model.safetensors", metadata={"format": "pt"})
        return load_checkpoint(folder)

    return make


@pytest.fixture(scope="module")
def checkpoint(changed: Changed) -> Checkpoint:
    """The tiny hybrid, with decays so slow that rounding errors add up."""
    return changed(lambda name, tensor: tensor - 4.0 if name.endswith("A_log") else tensor)


def words(count: int) -> list[int]:
    """Random token ids."""
    return torch.randint(5, 300, (count,), generator=torch.Generator().manual_seed(3)).tolist()


def exact(checkpoint: Checkpoint, compression: Compression | None = None) -> LLM:
    """An engine that computes in float64."""
    return LLM(checkpoint, dtype="fp64", compression=compression, max_tokens=2000, max_sessions=2)


@pytest.fixture(scope="module")
def measured(checkpoint: Checkpoint) -> Retention:
    """The tiny hybrid in float64 under a codec of each kind."""
    return measure_retention(exact(checkpoint), words(TOKENS), CODECS)


class FirstLayer:
    """The first layer of a checkpoint by itself, in plain numpy: what its recurrence reads, one token after another."""

    def __init__(self, checkpoint: Checkpoint, tokens: list[int]) -> None:
        config = checkpoint.config
        self.heads, self.width = config.linear_heads, config.linear_width
        weight = {name: tensor.double().numpy() for name, tensor in checkpoint.tensors.items()}
        at = "model.layers.0."
        own = {name.removeprefix(f"{at}self_attn."): value for name, value in weight.items()}
        x = weight["model.embed_tokens.weight"][tokens]
        h = x / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_eps) * weight[f"{at}input_layernorm.weight"]
        mixed = np.concatenate([h @ own[f"{name}_proj.weight"].T for name in ("q", "k", "v")], axis=1)
        taps = own["conv1d.weight"][:, 0, :]
        padded = np.concatenate([np.zeros((config.conv_taps - 1, mixed.shape[1])), mixed])
        summed = np.stack([(padded[t : t + config.conv_taps].T * taps).sum(1) for t in range(len(tokens))])
        _, k, v = np.moveaxis((summed / (1 + np.exp(-summed))).reshape(-1, 3, self.heads, self.width), 1, 0)
        self.k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
        self.v = v
        self.beta = 1 / (1 + np.exp(-h @ own["b_proj.weight"].T))
        self.rate, self.bias = np.exp(own["A_log"].reshape(-1, 1)), own["dt_bias"].reshape(self.heads, self.width)
        f = (h @ own["f_a_proj.weight"].T @ own["f_b_proj.weight"].T).reshape(-1, self.heads, self.width)
        self.g = -self.rate * np.log1p(np.exp(f + self.bias))

    def run(self, head: int, start: int, end: int, state: Array, *, writing: bool = True) -> Array:
        """A state of one head ``[K, ...]`` after tokens ``start`` to ``end``, with or without what they write."""
        for t in range(start, end):
            k, beta = self.k[t, head], self.beta[t, head]
            state = np.exp(self.g[t, head])[:, None] * state
            state = state - beta * np.outer(k, k @ state)
            if writing:
                state = state + beta * np.outer(k, self.v[t, head])
        return state


@pytest.fixture(scope="module")
def oracle(checkpoint: Checkpoint) -> FirstLayer:
    """The tiny hybrid's first layer on the same tokens."""
    return FirstLayer(checkpoint, words(TOKENS))


def test_state_against_position_is_that_of_the_recurrence(measured: Retention, oracle: FirstLayer) -> None:
    """Norm, effective rank, saturation and what is left of each stretch, for each head of the first layer."""
    assert measured.positions == [*range(128, 1280, 128), 1280]
    for number, head in enumerate(measured.layers[0].heads):
        empty = np.zeros((oracle.width, oracle.width))
        state, norms = empty, [0.0]
        pieces: list[Array] = []
        wrote: list[float] = []
        ranks: list[float] = []
        full: list[float] = []
        for start, end in zip([0, *measured.positions[:-1]], measured.positions, strict=True):
            pieces = [oracle.run(number, start, end, piece, writing=False) for piece in pieces]
            pieces.append(oracle.run(number, start, end, empty))
            wrote.append(float(np.linalg.norm(pieces[-1])))
            state = oracle.run(number, start, end, state)
            norms.append(float(np.linalg.norm(state)))
            shares = np.linalg.svd(state, compute_uv=False)
            shares = shares / shares.sum()
            ranks.append(math.exp(-(shares * np.log(shares)).sum()))
            full.append(1 - (norms[-1] - norms[-2]) / wrote[-1])

        np.testing.assert_allclose(head.curve.norm, norms[1:], rtol=1e-9)
        np.testing.assert_allclose(head.curve.effective_rank, ranks, rtol=1e-9)
        np.testing.assert_allclose(np.array(head.curve.saturation, dtype=float), full, atol=1e-9)
        left = [np.linalg.norm(piece) / whole for piece, whole in zip(pieces, wrote, strict=True)]
        np.testing.assert_allclose(np.array(head.kept, dtype=float), left, rtol=1e-8)
        np.testing.assert_allclose(sum(pieces), state, atol=1e-12)


def test_half_lives_are_those_of_the_gates(measured: Retention, oracle: FirstLayer) -> None:
    """At rest from A_log and dt_bias alone, on the tokens from the mean loss, one halving a token at most."""
    ln2 = math.log(2)
    resting = ln2 / np.minimum(oracle.rate * np.log1p(np.exp(oracle.bias)), ln2)
    on_tokens = ln2 / np.minimum(-oracle.g[:1280], ln2).mean(axis=0)
    for number, head in enumerate(measured.layers[0].heads):
        np.testing.assert_allclose(np.array(head.rest, dtype=float), resting[number], rtol=1e-9)
        np.testing.assert_allclose(np.array(head.seen, dtype=float), on_tokens[number], rtol=1e-9)


def test_known_decays_are_found_in_every_layer(checkpoint: Checkpoint, changed: Changed) -> None:
    """With the input cut off from the gates each channel has the half-life that it was given, at rest and on tokens."""
    width = checkpoint.config.linear_width
    given_lives = torch.cat([torch.tensor([1.0, 3.0, 1e7]), torch.logspace(1, 5, width - 3, base=10.0)]).double()

    def known(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name.endswith("f_b_proj.weight"):
            return torch.zeros_like(tensor)
        if name.endswith("A_log"):
            return torch.zeros_like(tensor)
        if name.endswith("dt_bias"):
            rate = math.log(2) / given_lives
            return torch.log(torch.expm1(rate)).repeat(checkpoint.config.linear_heads)
        return tensor

    found = measure_retention(exact(changed(known)), words(200), {})
    assert [layer.layer for layer in found.layers] == [0, 1, 2]
    for layer in found.layers:
        for head in layer.heads:
            np.testing.assert_allclose(np.array(head.rest, dtype=float), given_lives.numpy(), rtol=1e-7)
            np.testing.assert_allclose(np.array(head.seen, dtype=float), given_lives.numpy(), rtol=1e-7)


def test_layer_sums_its_heads_up(measured: Retention) -> None:
    """A layer's norm is the root mean square of its heads', its rank their mean; saturation and share left follow."""
    for layer in measured.layers:
        heads = [head.curve for head in layer.heads]
        norms = np.sqrt(np.mean(np.square([head.norm for head in heads]), axis=0))
        np.testing.assert_allclose(layer.curve.norm, norms, rtol=1e-12)
        np.testing.assert_allclose(layer.curve.effective_rank, np.mean([h.effective_rank for h in heads], axis=0))
        lowest, highest = (
            pick(np.array([head.kept for head in layer.heads], dtype=float), axis=0) for pick in (np.min, np.max)
        )
        kept = np.array(layer.kept, dtype=float)
        assert ((lowest - 1e-12 <= kept) & (kept <= highest + 1e-12)).all()
        assert kept[-1] == 1.0
        assert layer.curve.saturation[0] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", ["int4", "bf16", "feedback"])
def test_held_state_is_that_of_an_engine_with_the_codec(checkpoint: Checkpoint, measured: Retention, name: str) -> None:
    """In the first layer, whose inputs do not depend on any state, the held error is the real engine's."""
    compression = CODECS[name]
    plain, lossy = exact(checkpoint), exact(checkpoint, compression)
    a, b = plain.start(), lossy.start()
    for at, end in enumerate(measured.positions):
        for llm, session in ((plain, a), (lossy, b)):
            llm.extend(session, words(TOKENS)[session.tokens : end])
        state, held = plain.states.recurrent[0, a.slot], lossy.states.recurrent[0, b.slot]
        rounded = StateCodec(compression).round_trip(state)
        found = measured.codecs[name][0]
        assert found.held[at] == pytest.approx(((state - held).norm() / state.norm()).item(), rel=1e-6)
        assert found.once[at] == pytest.approx(((state - rounded).norm() / state.norm()).item(), rel=1e-9)
        assert found.curve.norm[at] == pytest.approx((held.norm() / math.sqrt(2)).item(), rel=1e-9)
    errors = (state - held).norm(dim=(-2, -1)) / state.norm(dim=(-2, -1))
    assert found.worst_head == pytest.approx(errors.max().item(), rel=1e-6)
    assert found.held[-1] > 1.05 * found.once[-1], "errors that do not add up would not show where the codec acts"


def test_codec_that_acts_once_is_held_against_the_stream_as_it_was(measured: Retention) -> None:
    """A profile that rounds on the fork loses one round trip at any position, and leaves its rank."""
    for layer in measured.codecs["rank"]:
        assert layer.held == layer.once
        assert min(layer.held) > 0
        assert max(layer.curve.effective_rank) <= 3 + 1e-9


def test_measuring_leaves_the_engine_as_it_was(checkpoint: Checkpoint) -> None:
    """Layers, slots and answers afterwards are those before, also where the measurement fails half-way."""
    llm = LLM(checkpoint, max_tokens=2000, max_sessions=2)
    before, free, mixers = llm.score(words(200)), llm.states.free, llm.model.mixers

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    measure_retention(llm, words(200), {})
    with pytest.raises(KeyboardInterrupt):
        measure_retention(llm, words(200), {}, stop)
    assert torch.equal(llm.score(words(200)), before)
    assert llm.states.free == free
    assert llm.model.mixers is mixers


def test_progress_ends_with_the_last_position(checkpoint: Checkpoint) -> None:
    """Tokens done out of tokens to do, after every stretch."""
    told: list[tuple[int, int]] = []
    measure_retention(LLM(checkpoint, max_tokens=2000), words(200), {}, lambda *state: told.append(state))

    assert told == [(64, 192), (128, 192), (192, 192)]


def test_states_that_overflow_are_told(changed: Changed) -> None:
    """A state that is not finite is an error that names its layer, never a figure."""

    def huge(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.sign() * 1e38 if name == "model.layers.1.self_attn.v_proj.weight" else tensor

    llm = LLM(changed(huge), max_tokens=2000, max_sessions=2)
    free = llm.states.free
    with pytest.raises(CheckpointError, match=r"state of layer 1 is not finite after 64 tokens"):
        measure_retention(llm, words(200), {})
    assert llm.states.free == free


def test_too_few_tokens_are_refused(checkpoint: Checkpoint) -> None:
    """Below one grid step there is no position to read."""
    with pytest.raises(DoesNotFitError, match="63 tokens"):
        measure_retention(LLM(checkpoint, max_tokens=2000), words(63), {})


@given(st.integers(0, 2**21))
def test_positions_lie_on_the_grid(tokens: int) -> None:
    """At most 16, rising multiples of 64, the last one the last there is; no stretch but the last is shorter."""
    found = stops(tokens)
    steps = np.diff([0, *found])

    assert len(found) <= 16
    assert found == sorted({position for position in found if position % 64 == 0})
    assert (found[-1] if found else 0) == tokens // 64 * 64
    assert len(set(steps[:-1])) <= 1
    assert not len(steps) or 0 < steps[-1] <= steps[0]
