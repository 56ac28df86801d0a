"""What was changed by hand before a run is complete is tampering, as it is afterwards; what is torn is asked again."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalgate import disk
from evalgate.errors import StorageError, TamperedError
from evalgate.records import Context, Manifest, Outcome, Trial
from evalgate.store import RunFolder
from evalgate.tables import CONTEXTS_KEY, SEAL_KEY, Part, pack, pack_part, unpack

MakeHaystack = Callable[..., tuple[list[Context], list[Trial]]]
MakeManifest = Callable[..., Manifest]
FILES = ("contexts.parquet", "trials.parquet", "counters.json")


@pytest.fixture
def running(tmp_path: Path, make_manifest: MakeManifest, make_haystack: MakeHaystack) -> RunFolder:
    """Give a run of three haystacks that is not finished; one answer of the middle one is wrong."""
    folder = RunFolder.create(tmp_path / "run", make_manifest())
    for seed in range(3):
        folder.write_part(seed, 0, *make_haystack(seed, lost=frozenset({"middle"} if seed == 1 else ())))
    return folder


def column(table: pa.Table, name: str, values: list[object]) -> pa.Table:
    """The table with other values in one column."""
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(name), pa.array(values, table.schema.field(name).type))


def recontexted(table: pa.Table) -> pa.Table:
    """The table with another number in its contexts."""
    metadata = dict(table.schema.metadata)
    (context,) = json.loads(metadata[CONTEXTS_KEY])
    metadata[CONTEXTS_KEY] = json.dumps([context | {"context_tokens": 979}]).encode()
    return table.replace_schema_metadata(metadata)


EDITS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "answer": lambda table: column(table, "answer", ["amber tower"] * 3),
    "outcome": lambda table: column(table, "outcome", [Outcome.CORRECT.value] * 3),
    "expected": lambda table: column(table, "expected", table["answer"].to_pylist()),
    "depth": lambda table: column(table, "depth", [0.1, 0.5000000000000001, 0.9]),
    "row-left-out": lambda table: table.slice(0, 1),
    "row-twice": lambda table: pa.concat_tables([table, table.slice(0, 1)]),
    "no-rows": lambda table: table.slice(0, 0),
    "rows-swapped": lambda table: table.take([2, 1, 0]),
    "another-haystack": lambda table: column(table, "seed", [9, 9, 9]),
    "contexts": recontexted,
    "seal": lambda table: table.replace_schema_metadata({**table.schema.metadata, SEAL_KEY: b"0" * 64}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_part_is_tampered(running: RunFolder, edit: str) -> None:
    """A part that still parses and says another thing than was written stops resuming, merging and showing."""
    path = running.path / "parts" / "1-0.parquet"
    pq.write_table(EDITS[edit](pq.read_table(path)), path)

    for look in (running.done, running.trials, running.contexts, running.verify):
        with pytest.raises(TamperedError, match=r"1-0\.parquet was changed after it was written, or comes from"):
            look()
    with pytest.raises(TamperedError, match="delete it and run the same command again"):
        running.finish(running.manifest(), {})
    assert path.exists(), "what was done stays to be seen"
    assert running.manifest().status == "running"
    path.unlink()
    assert running.done() == {(0, 0), (2, 0)}


def test_part_that_was_only_rewritten_is_the_same(running: RunFolder) -> None:
    """The seal speaks of what a part says, not of how it is packed."""
    path = running.path / "parts" / "1-0.parquet"
    before = running.trials()
    pq.write_table(pq.read_table(path), path, compression="none")

    assert running.trials() == before


def test_part_of_another_run_is_tampered(
    running: RunFolder, tmp_path: Path, make_manifest: MakeManifest, make_haystack: MakeHaystack
) -> None:
    """The same haystack as another model answered it is not this run's."""
    other = RunFolder.create(tmp_path / "other", make_manifest().model_copy(update={"run_id": "run-2"}))
    other.write_part(1, 0, *make_haystack(1))
    (running.path / "parts" / "1-0.parquet").write_bytes((other.path / "parts" / "1-0.parquet").read_bytes())

    with pytest.raises(TamperedError, match="comes from another run"):
        running.done()


def test_part_without_a_seal_is_asked_again(running: RunFolder) -> None:
    """A part that lost its seal, or came without one, is no part: nothing of it counts."""
    path = running.path / "parts" / "1-0.parquet"
    table = pq.read_table(path)
    metadata = {key: value for key, value in table.schema.metadata.items() if key != SEAL_KEY}
    pq.write_table(table.replace_schema_metadata(metadata), path)

    assert running.done() == {(0, 0), (2, 0)}
    assert not path.exists()


def test_results_that_nobody_recorded_are_not_merged(running: RunFolder, make_haystack: MakeHaystack) -> None:
    """Result files laid into a run before it merged any do not come to count as its own."""
    contexts, trials = make_haystack(1)
    (running.path / "trials.parquet").write_bytes(pack(Trial, trials))
    (running.path / "contexts.parquet").write_bytes(pack(Context, contexts))

    assert sum(trial.outcome is Outcome.WRONG for trial in running.trials()) == 1
    running.finish(running.manifest(), {})
    assert sum(trial.outcome is Outcome.WRONG for trial in running.trials()) == 1
    assert running.verify().status == "complete"


@pytest.fixture
def replacing(running: RunFolder, make_haystack: MakeHaystack) -> tuple[RunFolder, dict[str, bytes], dict[str, bytes]]:
    """A run whose process died while it replaced its results by those of one more haystack; old and new files."""
    running.finish(running.manifest(), {"haystacks": 3})
    old = {name: (running.path / name).read_bytes() for name in FILES}
    recorded = running.manifest().files
    running.write_part(3, 0, *make_haystack(3))
    part = (running.path / "parts" / "3-0.parquet").read_bytes()
    running.finish(running.manifest(), {"haystacks": 4})
    new = {name: (running.path / name).read_bytes() for name in FILES}
    files = running.manifest().files | {f"before/{name}": digest for name, digest in recorded.items()}
    running.write_manifest(running.manifest().model_copy(update={"status": "running", "files": files}))
    (running.path / "parts").mkdir()
    (running.path / "parts" / "3-0.parquet").write_bytes(part)
    return running, old, new


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_results_are_kept_where_replacing_fails(running: RunFolder, make_haystack: MakeHaystack, name: str) -> None:
    """A disk that refuses one of the new files costs no haystack, old or new."""
    running.finish(running.manifest(), {"haystacks": 3})
    running.write_part(3, 0, *make_haystack(3))
    in_the_way = running.path / f".{name}.{os.getpid()}{disk.TEMPORARY}"
    in_the_way.mkdir()
    with pytest.raises(StorageError, match=name):
        running.finish(running.manifest(), {"haystacks": 4})

    assert [trial.seed for trial in running.trials()] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    in_the_way.rmdir()
    running.finish(running.manifest(), {"haystacks": 4})
    assert len(running.trials()) == 12
    assert running.verify().status == "complete"


@pytest.mark.parametrize("replaced", range(len(FILES) + 1))
def test_results_half_replaced_are_whole(
    replacing: tuple[RunFolder, dict[str, bytes], dict[str, bytes]], replaced: int
) -> None:
    """Old and new files side by side hold every haystack once, and the run completes."""
    folder, old, new = replacing
    for at, name in enumerate(FILES):
        (folder.path / name).write_bytes((new if at < replaced else old)[name])

    assert folder.done() == {(seed, 0) for seed in range(4)}
    folder.finish(folder.manifest(), {"haystacks": 4})
    assert len(folder.trials()) == len(folder.contexts()) * 3 == 12
    assert set(folder.verify().files) == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_results_edited_while_replaced_are_tampered(
    replacing: tuple[RunFolder, dict[str, bytes], dict[str, bytes]], name: str
) -> None:
    """A file that is neither the old nor the new one was changed by hand, then too."""
    folder, old, _ = replacing
    edited: dict[str, Callable[[], bytes]] = {
        "contexts.parquet": lambda: pack(Context, unpack(Context, old[name])[1:]),
        "trials.parquet": lambda: pack(Trial, unpack(Trial, old[name])[1:]),
        "counters.json": lambda: b'{"haystacks": 5}',
    }
    (folder.path / name).write_bytes(edited[name]())

    with pytest.raises(TamperedError, match="was changed after it was written"):
        folder.finish(folder.manifest(), {})


def test_seal_knows_the_run(make_haystack: MakeHaystack) -> None:
    """Equal records of two runs have other seals."""
    part = Part(*make_haystack(1))
    swapped = Part(part.contexts, [dataclasses.replace(trial) for trial in part.trials])

    assert pack_part(part, "run-1") == pack_part(swapped, "run-1") != pack_part(part, "run-2")
