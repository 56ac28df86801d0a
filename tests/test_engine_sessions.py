"""Sessions: forks, batches, reuse and limits, in pools whose freed parts are poisoned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from evalgate.engine.llm import LLM
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.session import Session
from evalgate.errors import DoesNotFitError, UnsupportedError

NEAR = 1e-4
"""Logits of size 1 from two batch shapes in float32."""


@pytest.fixture(scope="module", params=["hybrid", "mostly-attention", "experts"])
def checkpoint(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Checkpoint:
    """A random model of each shape."""
    return load_checkpoint(tiny_models[request.param])


@pytest.fixture
def llm(checkpoint: Checkpoint) -> LLM:
    """An engine with room for six sessions of 2,000 tokens."""
    return LLM(checkpoint, max_tokens=2000, max_sessions=6, poison=True)


def words(count: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, 300, (count,), generator=generator).tolist()


class Answer(NamedTuple):
    """What a session went on to say."""

    tokens: list[int]
    finish: str


def answers(llm: LLM, sessions: list[Session], max_tokens: int, stop_ids: frozenset[int] = frozenset()) -> list[Answer]:
    """Greedy continuations."""
    return [Answer(r.tokens, r.finish) for r in llm.generate(sessions, max_tokens, stop_ids)]


def snapshot(llm: LLM, session: Session) -> list[torch.Tensor]:
    """Everything that a session is made of, copied."""
    rows = llm.pages.locate(session.pages, 0, session.cached)
    parts = [*llm.states.parts(session.slot), *(column[:, rows] for column in llm.pages.columns)]
    return [part.clone() for part in parts]


@pytest.mark.parametrize("at", [64, 100, 128])
def test_forks_do_not_touch_their_parent_or_each_other(llm: LLM, at: int) -> None:
    """Whatever forks take in and generate, parent and sibling keep their state, their pages and their answers."""
    parent = llm.prefill(words(at))
    before = snapshot(llm, parent)
    alone = answers(llm, llm.fork(parent, [words(30, seed=1)]), 8)[0]
    first, second = llm.fork(parent, [words(30, seed=1), words(41, seed=2)])
    kept = snapshot(llm, second)
    assert answers(llm, [first], 8)[0] == alone
    for now, then in zip(snapshot(llm, second), kept, strict=True):
        assert torch.equal(now, then)
    answers(llm, [second], 8)
    for now, then in zip(snapshot(llm, parent), before, strict=True):
        assert torch.equal(now, then)
    llm.release(first, second)
    assert answers(llm, llm.fork(parent, [words(30, seed=1)]), 8)[0] == alone


def test_partly_filled_page_is_copied_and_full_ones_are_shared(llm: LLM) -> None:
    """A fork at 100 tokens shares the page of the first 64 and has its own copy of the other 36 rows."""
    parent = llm.prefill(words(100))
    (fork,) = llm.fork(parent)
    assert fork.pages[0] == parent.pages[0]
    assert fork.pages[1] != parent.pages[1]
    for now, then in zip(snapshot(llm, fork), snapshot(llm, parent), strict=True):
        assert torch.equal(now, then)
    (on_grid,) = llm.fork(llm.prefill(words(128)))
    llm.extend(on_grid, words(3))
    assert len(on_grid.pages) == 3


def test_parent_may_be_released_before_its_forks(llm: LLM) -> None:
    """Shared pages live as long as anyone holds them."""
    parent = llm.prefill(words(200))
    expected = answers(llm, llm.fork(parent, [words(9, seed=1)]), 6)[0]
    (fork,) = llm.fork(parent, [words(9, seed=1)])
    llm.release(parent)
    other = llm.prefill(words(300, seed=3))
    assert answers(llm, [fork], 6)[0] == expected
    llm.release(other)


def test_reused_slot_and_pages_leave_no_trace(llm: LLM) -> None:
    """A prompt answered in memory that another session used gives exactly what it gave in fresh memory."""
    first = llm.prefill(words(150))
    expected = llm.logits([first])
    llm.release(first)
    for seed in range(1, 8):
        llm.release(llm.prefill(words(500, seed=seed)))
    again = llm.prefill(words(150))
    assert torch.equal(llm.logits([again]), expected)


def test_tails_of_unequal_length_are_as_if_alone(llm: LLM) -> None:
    """Padding, cuts on the grid and row order change no row: 1, 63, 64, 65 and 130 tokens after 128."""
    parent = llm.prefill(words(128))
    tails = [words(n, seed=n) for n in (64, 1, 130, 65, 63)]
    forks = llm.fork(parent, tails)
    together = llm.logits(forks)
    said = answers(llm, forks, 5)
    llm.release(*forks)
    for row, tail in enumerate(tails):
        (fork,) = llm.fork(parent, [tail])
        torch.testing.assert_close(llm.logits([fork])[0], together[row], atol=NEAR, rtol=NEAR)
        assert answers(llm, [fork], 5)[0] == said[row]
        llm.release(fork)


def test_generation_of_unlike_sessions_is_as_if_alone(llm: LLM, checkpoint: Checkpoint) -> None:
    """Sessions of unequal length that share nothing decode in one batch as they do alone."""
    prompts = [words(n, seed=n) for n in (1, 64, 70, 700)]
    together = answers(llm, [llm.prefill(prompt) for prompt in prompts], 10)
    for prompt, expected in zip(prompts, together, strict=True):
        fresh = LLM(checkpoint, max_tokens=2000, max_sessions=1, poison=True)
        assert answers(fresh, [fresh.prefill(prompt)], 10)[0] == expected


def test_rows_stop_one_by_one(llm: LLM) -> None:
    """A stop token ends its row only, is left out of the answer, and an answer may be empty."""
    parent = llm.prefill(words(90))
    tails = [words(5, seed=s) for s in range(3)]
    forks = llm.fork(parent, tails)
    free = answers(llm, forks, 12)
    llm.release(*forks)
    stop = free[0].tokens[4]
    immediate = free[1].tokens[0]
    forks = llm.fork(parent, tails)
    stopped = answers(llm, forks, 12, frozenset({stop, immediate}))
    for whole, cut in zip(free, stopped, strict=True):
        ends = [i for i, token in enumerate(whole.tokens) if token in {stop, immediate}]
        assert cut.tokens == whole.tokens[: ends[0]] if ends else whole.tokens
        assert cut.finish == ("stop" if ends else "length")
    assert stopped[1].tokens == []


def test_a_row_of_nan_is_an_error_and_only_its_own(llm: LLM) -> None:
    """A state that has gone bad ends its row as an error; the others answer as without it."""
    parent = llm.prefill(words(80))
    tails = [words(5, seed=s) for s in range(3)]
    forks = llm.fork(parent, tails)
    expected = answers(llm, forks, 6)
    llm.release(*forks)
    forks = llm.fork(parent, tails[:1]) + llm.fork(parent, [[]]) + llm.fork(parent, tails[2:])
    llm.states.recurrent[:, forks[1].slot] = torch.nan
    with torch.inference_mode():
        llm.runner.prefill([forks[1]], [tails[1]])
    found = answers(llm, forks, 6)
    assert (found[1].finish, found[1].tokens) == ("error", [])
    assert (found[0], found[2]) == (expected[0], expected[2])


def test_what_does_not_fit_is_refused_before_the_first_token(llm: LLM) -> None:
    """Too long a prompt, tail or answer says what fits, and leaves everything as it was."""
    free = (llm.states.free, llm.pages.free)
    with pytest.raises(DoesNotFitError, match="2001 tokens asked for, at most 2000 fit"):
        llm.prefill(words(2001))
    assert (llm.states.free, llm.pages.free) == free
    session = llm.prefill(words(1990))
    with pytest.raises(DoesNotFitError, match="at most 2000"):
        answers(llm, [session], 11)
    with pytest.raises(DoesNotFitError, match="at most 2000"):
        llm.fork(session, [words(11)])
    assert answers(llm, [session], 10)[0].finish == "length"


def test_a_failed_fork_gives_back_what_it_took(llm: LLM) -> None:
    """When slots run out half-way, the slots and pages of the forks so far are free again."""
    parent = llm.prefill(words(70))
    free = (llm.states.free, llm.pages.free)
    with pytest.raises(DoesNotFitError, match="state slots"):
        llm.fork(parent, [words(3)] * 6)
    assert (llm.states.free, llm.pages.free) == free


def test_released_session_is_not_used_again(llm: LLM) -> None:
    """Using a session after its release is an error of the caller's, at once."""
    session = llm.prefill(words(10))
    llm.release(session, session)
    with pytest.raises(AssertionError, match="after it was released"):
        llm.extend(session, words(1))


def test_window_is_the_models_unless_asked(
    checkpoint: Checkpoint, tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    """Without a limit the model's own window holds; more than that, and odd chunks, are refused."""
    assert LLM(checkpoint).window == 16384
    with pytest.raises(DoesNotFitError, match="at most 16384 fit"):
        LLM(checkpoint, max_tokens=16385)
    with pytest.raises(UnsupportedError, match="multiple of 64"):
        LLM(checkpoint, prefill_chunk=100)
    shutil.copytree(tiny_models["hybrid"], tmp_path, dirs_exist_ok=True)
    body = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(body | {"model_max_length": 2**50}))
    vast = LLM.open(tmp_path)
    assert 16384 < vast.window < 2**50
    with pytest.raises(DoesNotFitError, match=r"fit \(memory\)"):
        vast.check_fits(2**49)
