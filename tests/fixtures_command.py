"""Fixtures: the command line in this process, and run folders to give it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evalgate.gates.policy import load_policy
from evalgate.records import Context, Manifest, Outcome, Trial


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def evalgate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """``evalgate("gate", run, "--policy", "demo")``: run a command in this process."""
    from evalgate.cli import main

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr("sys.argv", ["evalgate", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        told = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Ended(int(end.value.code), told.out, told.err)

    return call


def keep_run(path: Path, manifest: Manifest, trials: Iterable[Trial]) -> Path:
    """Write a complete run folder of ``trials``, with a context for each that they name."""
    from evalgate.store import RunFolder

    folder = RunFolder.create(path, manifest.model_copy(update={"status": "running"}))
    haystacks: dict[int, list[Trial]] = {}
    for trial in trials:
        haystacks.setdefault(trial.seed, []).append(trial)
    for seed, asked in haystacks.items():
        contexts = {
            trial.context_id: Context(
                context_id=trial.context_id,
                seed=seed,
                stream=trial.stream,
                length=trial.length,
                context_start=4,
                context_tokens=980,
                needle_spans="[]",
            )
            for trial in asked
        }
        folder.write_part(seed, 0, list(contexts.values()), asked)
    folder.finish(manifest, {"prefilled_tokens": 1})
    return path


@pytest.fixture(scope="session")
def kept_runs(
    tmp_path_factory: pytest.TempPathFactory, make_judged_run: Callable[..., tuple[Manifest, list[Trial]]]
) -> dict[str, Path]:
    """Run folders to read, not to change: ``good`` passes policy demo, ``bad`` loses the middle, ``tiny`` is smoke."""
    demo, smoke = load_policy("demo"), load_policy("smoke")
    root = tmp_path_factory.mktemp("runs")
    lost = {("multikey@8", "middle"): {Outcome.WRONG: range(40)}}
    return {
        "good": keep_run(root / "good", *make_judged_run(demo, run_id="good")),
        "bad": keep_run(root / "bad", *make_judged_run(demo, run_id="bad", profile="state-int8", answers=lost)),
        "tiny": keep_run(root / "tiny", *make_judged_run(smoke, run_id="tiny")),
    }


@pytest.fixture(scope="session")
def builtin_tokenizer() -> Any:
    """The embedded models' tokenizer behind the backends' port."""
    from evalgate.backends.models import find_model
    from evalgate.backends.tokenizer import ModelTokenizer

    return ModelTokenizer(find_model("builtin:hybrid"))


@pytest.fixture(scope="session")
def coarse_tokenizer() -> Any:
    """Another tokenizer: every word is one token, line breaks and full stops are their own."""

    class Coarse:
        def __init__(self) -> None:
            self.met: dict[int, str] = {}

        special_ids: frozenset[int] = frozenset()

        def encode_batch(self, texts: list[str]) -> list[list[int]]:
            return [[self._id(piece) for piece in re.findall(r"<\|\w+\|>| ?\w+| ?[^\w\s]|\n", text)] for text in texts]

        def decode(self, ids: list[int]) -> str:
            return "".join(self.met[i] for i in ids)

        def _id(self, piece: str) -> int:
            number = int(hashlib.sha256(piece.encode()).hexdigest()[:7], 16)
            self.met[number] = piece
            return number

        def render_chat(self, user_content: str = "", system: str | None = None) -> Any:
            return Pieces(f"{system or ''}<|user|>{user_content}", "<|model|>", "<|user|>")

        def render_base(self, system: str | None = None) -> Any:
            return Pieces(system or "", "\n", "\n")

    return Coarse()


class Pieces(NamedTuple):
    """What stands around a user's text, and between an answer and the next question."""

    head: str
    tail: str
    turn: str
