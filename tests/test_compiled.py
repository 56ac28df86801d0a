"""Compiled suites: the same haystacks in any process, the same run, and nothing changed unseen."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_items import rows, suite_of, write

from evalgate.errors import ExitCode, InvalidDocumentError, RefusedError, TamperedError
from evalgate.haystack_file import HaystackFile, Row, writing
from evalgate.records import Trial
from evalgate.store import RunFolder
from evalgate.tasks.compiled import Compiled, compile_suite
from evalgate.tasks.haystack import Builder
from evalgate.tasks.suite import load_suite

Evalgate = Callable[..., Any]


def quiet(haystacks: int, tokens: int) -> None:
    """Hears how far it is."""


def timeless(trials: list[Trial]) -> list[Trial]:
    """Without how long they took."""
    return [dataclasses.replace(trial, latency_s=0.0, batch_id="") for trial in trials]


def read_all(path: Path) -> None:
    """Read every haystack."""
    compiled = Compiled(path)
    for seed in range(2):
        for stream in compiled.streams:
            compiled.build(seed, stream)


@pytest.fixture(scope="module")
def smoke(builtin_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Suite ``smoke`` compiled for the embedded models: two seeds."""
    path = tmp_path_factory.mktemp("compiled") / "smoke.parquet"
    compile_suite(Builder(load_suite("smoke"), builtin_tokenizer, "main"), builtin_tokenizer.sha256, 2, path, quiet)
    return path


@pytest.mark.parametrize("name", ["smoke", "demo", "release"])
def test_what_is_read_is_what_was_built(name: str, builtin_tokenizer: Any, tmp_path: Path) -> None:
    """Haystacks, packing and bounds come back as they were, to the last field."""
    builder = Builder(load_suite(name), builtin_tokenizer, "main")
    compile_suite(builder, builtin_tokenizer.sha256, 1, tmp_path / "s.parquet", quiet)
    compiled = Compiled(tmp_path / "s.parquet")

    assert compiled.suite == builder.suite
    assert compiled.streams == builder.streams
    for stream in builder.streams:
        assert compiled.build(0, stream) == builder.build(0, stream)
    for what in ("reserve", "tail_tokens", "needle_tokens", "seed_set", "corpus_id", "questions_id"):
        assert getattr(compiled, what) == getattr(builder, what)


def test_documents_and_questions_are_in_it(builtin_tokenizer: Any, tmp_path: Path) -> None:
    """A suite over files of the user's own runs where those files are not."""
    path = write(tmp_path / "q.jsonl", rows())
    builder = Builder(suite_of(path), builtin_tokenizer, "main")
    compile_suite(builder, builtin_tokenizer.sha256, 2, tmp_path / "s.parquet", quiet)
    built = [builder.build(1, stream) for stream in builder.streams]
    path.unlink()
    compiled = Compiled(tmp_path / "s.parquet")

    assert [compiled.build(1, stream) for stream in compiled.streams] == built
    assert compiled.questions_id == builder.questions_id
    with pytest.raises(RefusedError, match="last for"):
        compile_suite(builder, builtin_tokenizer.sha256, 100, tmp_path / "more.parquet", quiet)
    assert not (tmp_path / "more.parquet").exists()


def test_the_same_bytes_in_another_process(smoke: Path, tmp_path: Path) -> None:
    """The command, in a process with other hash seeds, writes the same file."""
    out = tmp_path / "again.parquet"
    command = [sys.executable, "-m", "evalgate", "suite", "compile", "smoke", "--tokenizer", "builtin:hybrid"]
    done = subprocess.run([*command, "--seeds", "2", "--out", str(out), "--json"], capture_output=True, check=True)

    assert out.read_bytes() == smoke.read_bytes()
    assert json.loads(done.stdout)["sha256"] == Compiled(smoke).compiled


def test_a_run_of_it_is_the_same_run(evalgate: Evalgate, smoke: Path, tmp_path: Path) -> None:
    """Trial by trial but for times; the manifest names the file; the gate takes it; what it lacks is refused."""
    words = ("--model", "builtin:hybrid", "--seeds", 2, "--out")
    assert evalgate("run", smoke, *words, tmp_path / "compiled").code == ExitCode.PASS
    assert evalgate("run", "smoke", *words, tmp_path / "built").code == ExitCode.PASS
    compiled, built = (RunFolder.open(tmp_path / name) for name in ("compiled", "built"))

    assert timeless(compiled.trials()) == timeless(built.trials())
    assert compiled.contexts() == built.contexts()
    assert compiled.manifest().compiled == Compiled(smoke).compiled
    assert built.manifest().compiled is None
    assert compiled.manifest().suite == built.manifest().suite
    assert evalgate("gate", tmp_path / "compiled", "--policy", "smoke").code == ExitCode.PASS
    for more, said in (
        (("--seeds", 3), "holds 2; ask at most 2"),
        (("--seeds", 2, "--seed-set", "other"), "give --seed-set main"),
        (("--seeds", 2, "--thinking-tokens", 9), "leave the option out"),
    ):
        ended = evalgate("run", smoke, "--model", "builtin:hybrid", *more, "--out", tmp_path / "no")
        assert ended.code == ExitCode.REFUSED
        assert said in ended.err
    assert (
        "builds haystacks of its own" in evalgate("audit", smoke, "--model", "x", "--policy", "smoke", "--out", "y").err
    )
    assert "is compiled already" in evalgate("suite", "compile", smoke, "--tokenizer", "x", "--out", "y.parquet").err
    assert "ends in .parquet" in evalgate("suite", "compile", "smoke", "--tokenizer", "x", "--out", "y").err


def test_another_tokenizer_is_refused(smoke: Path) -> None:
    """Its ids would be other words."""
    with pytest.raises(RefusedError, match="compiled for another tokenizer"):
        Compiled(smoke).check("0" * 64, "main")


@pytest.mark.parametrize("field", ["tokens", "body", "seed", "sha256", "row", "header"])
def test_a_change_is_seen(smoke: Path, tmp_path: Path, field: str) -> None:
    """Whatever is edited, with the file's own checksums written anew."""
    table = pq.read_table(smoke)
    metadata = dict(pq.ParquetFile(smoke).metadata.metadata)
    values = table.to_pydict()
    if field == "tokens":
        values["tokens"][1] = values["tokens"][0]
    elif field == "body":
        values["body"][1] = values["body"][1].replace('"number"', '"absent"', 1)
    elif field == "seed":
        values["seed"] = values["seed"][::-1]
    elif field == "sha256":
        values["sha256"][1] = values["sha256"][0]
    elif field == "row":
        values = {name: column[:-1] for name, column in values.items()}
    else:
        metadata[b"evalgate.header"] = metadata[b"evalgate.header"].replace(b'"seeds":2', b'"seeds":9')
    changed = tmp_path / "changed.parquet"
    kept = {key: value for key, value in metadata.items() if key.startswith(b"evalgate.")}
    with pq.ParquetWriter(changed, table.schema.remove_metadata()) as writer:
        written = pa.table(values, schema=table.schema.remove_metadata())
        for row in range(len(written)):
            writer.write_table(written.slice(row, 1))
        writer.add_key_value_metadata(kept)

    with pytest.raises(TamperedError):
        read_all(changed)


def test_files_that_are_none_are_told(evalgate: Evalgate, smoke: Path, tmp_path: Path) -> None:
    """No file, another parquet file, a torn one: said without a traceback."""
    other, torn = tmp_path / "other.parquet", tmp_path / "torn.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    torn.write_bytes(smoke.read_bytes()[:-9])
    for path in (tmp_path / "none.parquet", other, torn):
        ended = evalgate("run", path, "--model", "builtin:hybrid", "--out", tmp_path / "run")
        assert ended.code == ExitCode.REFUSED, ended
        assert "not a compiled suite" in ended.err
    flipped = bytearray(smoke.read_bytes())
    flipped[len(flipped) // 3] ^= 1
    torn.write_bytes(flipped)
    with pytest.raises((TamperedError, InvalidDocumentError)):
        read_all(torn)


def test_a_file_appears_whole(tmp_path: Path) -> None:
    """A writer that is interrupted leaves nothing, and one that is there is not written over."""

    def interrupted() -> None:
        with writing(tmp_path / "s.parquet", {}) as writer:
            writer.write(Row(0, 0, [1, 2], "{}"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    with writing(tmp_path / "new" / "s.parquet", {"a": "ü"}) as writer:
        writer.write(Row(0, 0, [1, 2**32 - 1], "{}"))
        digest = writer.finish()
    with pytest.raises(RefusedError, match="is there already"), writing(tmp_path / "new" / "s.parquet", {}):
        pass
    file = HaystackFile(tmp_path / "new" / "s.parquet")
    assert (file.sha256, file.header, file.read(0, 0)) == (digest, {"a": "ü"}, Row(0, 0, [1, 2**32 - 1], "{}"))
