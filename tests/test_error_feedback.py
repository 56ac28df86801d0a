"""Error feedback: what one rounding of a state lost is added before the next, slot for slot and row for row.

Where in a stretch of tokens the engine does so is tested with the other codecs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from evalgate.engine.compression import ERROR_FORM, Compression, Rounded, StateCodec, StateDtype
from evalgate.engine.llm import LLM
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.request import Request
from evalgate.kernels.state_codec import Encoded

PLAIN = Compression(state_dtype="int8", codec_every=64)
ONCE = Compression(state_rank=2)
FEEDBACK = Compression(state_dtype="int4", codec_every=64, error_feedback=True)


def feedback(dtype: StateDtype, every: int | None = 64) -> StateCodec:
    """A codec that remembers what it lost."""
    return StateCodec(Compression(state_dtype=dtype, codec_every=every, error_feedback=True))


def no_errors(codec: StateCodec, shape: tuple[int, ...]) -> list[Tensor]:
    """What a new session begins with."""
    return [torch.zeros(spec.shape, dtype=spec.dtype) for spec in codec.error_specs(shape)]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_error_feedback_keeps_what_is_too_small_to_be_rounded_up(dtype: StateDtype) -> None:
    """Writes of less than half a step are lost for ever without it; with it the state is never a step off."""
    codec = feedback(dtype)
    state = torch.zeros(1, 4, 8)
    state[..., 0] = 127 if dtype == "int8" else 7
    write = torch.zeros_like(state)
    write[..., 1:] = torch.linspace(0.05, 0.3, 7)
    plain, rounded = state, Rounded(state, Encoded(tuple(no_errors(codec, (1, 4, 8)))))
    for step in range(1, 21):
        plain = codec.round_trip(plain + write)
        rounded = codec.round_with_error(rounded.state + write, rounded.error)
        assert (rounded.state - state - step * write).abs().max() < 1.0
    assert torch.equal(plain, state)
    assert torch.equal(rounded.state, rounded.state.round())


def test_error_is_what_rounding_lost() -> None:
    """State and error together are the state before, to a fifteenth of the error; its bytes are as specified."""
    torch.manual_seed(0)
    state = torch.randn(3, 2, 16, 16)
    codec = feedback("int4")
    specs = codec.error_specs((3, 2, 16, 16))
    assert sum(spec.nbytes for spec in specs) == 3 * 2 * 16 * (16 // 2 + 4)
    rounded = codec.round_with_error(state, Encoded(tuple(no_errors(codec, (3, 2, 16, 16)))))
    assert [(tuple(x.shape), x.dtype) for x in rounded.error.tensors] == [tuple(spec) for spec in specs]
    lost = state - rounded.state
    kept = ERROR_FORM.decode(rounded.error, torch.float32)
    assert ((lost - kept).abs() <= lost.abs().amax(dim=-1, keepdim=True) / 13.9).all()
    assert StateCodec(Compression(state_dtype="int4")).error_specs((3, 2, 16, 16)) == ()


@pytest.mark.parametrize("where", ["state", "error"])
def test_a_bad_state_or_error_stays_bad_and_alone(where: str) -> None:
    """NaN in a head's state, or poison in its error, is in both from then on, and in no other head's."""
    codec, shape = feedback("int8"), (2, 2, 4, 4)
    state, errors = torch.ones(shape), no_errors(codec, shape)
    (state if where == "state" else errors[-1])[1, 0] = torch.nan
    rounded = codec.round_with_error(state, Encoded(tuple(errors)))
    for found in (rounded.state, ERROR_FORM.decode(rounded.error, torch.float32)):
        assert found[1, 0].isnan().all()
        assert found[0].isfinite().all()
        assert found[1, 1].isfinite().all()


@pytest.mark.parametrize("compression", [PLAIN, ONCE, FEEDBACK], ids=str)
def test_slots_of_a_pool_are_rounded_in_place(compression: Compression) -> None:
    """Named slots are rounded with their own errors; the others, errors included, are left as they are."""
    torch.manual_seed(0)
    codec = StateCodec(compression)
    states = torch.randn(3, 5, 2, 16, 16)
    errors = no_errors(codec, (3, 5, 2, 16, 16))
    for _ in range(2):
        states += torch.randn(states.shape) * 0.1
        before, kept, slots = states.clone(), [error.clone() for error in errors], torch.tensor([3, 1])
        codec.round_slots(states, tuple(errors), slots)
        for slot in range(5):
            expected = Rounded(before[:, slot], Encoded(tuple(error[:, slot] for error in kept)))
            if slot in {1, 3}:
                expected = codec.round_with_error(*expected)
            torch.testing.assert_close(states[:, slot], expected.state)
            for error, wanted in zip(errors, expected.error.tensors, strict=True):
                torch.testing.assert_close(error[:, slot], wanted)
    assert (states != before).any()


def test_errors_go_from_one_grid_point_to_the_next() -> None:
    """Each row carries its own error along the grid, from what the list held and back into it, until it ends."""
    torch.manual_seed(0)
    codec, shape = feedback("int4", every=128), (3, 2, 8, 8)
    lengths = torch.tensor([300, 127, 128])
    errors, state = no_errors(codec, shape), torch.randn(shape)
    act = codec.at_grid(64, lengths, errors)
    assert act is not None
    expected = [Rounded(row, Encoded(tuple(no_errors(codec, shape[1:])))) for row in state]
    for tokens in range(64, 321, 64):
        write = torch.randn(shape)
        state = act(tokens, state + write)
        for i, row in enumerate(expected):
            grown = Rounded(row.state + write[i], row.error)
            here = (64 + tokens) % 128 == 0 and lengths[i] >= tokens
            expected[i] = codec.round_with_error(*grown) if here else grown
    torch.testing.assert_close(state, torch.stack([row.state for row in expected]))
    for i, row in enumerate(expected):
        for error, wanted in zip(errors, row.error.tensors, strict=True):
            torch.testing.assert_close(error[i], wanted)
    assert [bool(error.any()) for error in errors[1]] == [True, True, True]


@pytest.fixture(scope="module")
def checkpoint(tiny_models: dict[str, Path]) -> Checkpoint:
    """The tiny hybrid."""
    return load_checkpoint(tiny_models["hybrid"])


def engine(checkpoint: Checkpoint, compression: Compression) -> LLM:
    """An engine with poisoned pools."""
    return LLM(
        checkpoint,
        compression=compression,
        max_tokens=2000,
        max_sessions=4,
        prefill_chunk=128,
        snapshot_interval=64,
        poison=True,
    )


def words(count: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 300, (count,), generator=generator).tolist()


def test_states_of_a_trained_model_stay_closer_to_the_exact_ones(repository: Path) -> None:
    """After fifteen roundings they are off by clearly less than without error feedback."""
    trained = load_checkpoint(repository / "evalgate" / "assets" / "hybrid")
    states = []
    for compression in (
        Compression(),
        Compression(state_dtype="int8", codec_every=64),
        Compression(state_dtype="int8", codec_every=64, error_feedback=True),
    ):
        llm = engine(trained, compression)
        states.append(llm.states.recurrent[:, llm.prefill(words(960)).slot])
    exact, plain, fed = states
    assert (fed - exact).norm() < 0.75 * (plain - exact).norm()


def test_forks_and_stored_prefixes_carry_the_error(checkpoint: Checkpoint) -> None:
    """A fork and a restored session begin with the same errors, to the bit, and a freed slot keeps none."""
    llm = engine(checkpoint, FEEDBACK)
    parent = llm.prefill(words(192))
    errors = [part.clone() for part in llm.states.parts(parent.slot)[2:]]
    assert all(part.any() for part in errors)
    (fork,) = llm.fork(parent)
    llm.run([Request(tokens=words(200), max_tokens=1)])
    (node,) = llm.prefixes.stored()
    assert node.prefix is not None
    restored = llm.memory.restore(node.prefix)
    for session in (fork, restored):
        for found, expected in zip(llm.states.parts(session.slot)[2:], errors, strict=True):
            assert torch.equal(found, expected)
    llm.release(parent, fork, restored)
    fresh = [llm.start() for _ in range(4)]
    assert not any(part.any() for session in fresh for part in llm.states.parts(session.slot))
