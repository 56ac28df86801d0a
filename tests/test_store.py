"""Run folders: whole at every moment, honest about what was changed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalgate import disk
from evalgate.errors import InvalidRunError, MismatchError, TamperedError
from evalgate.records import Context, Manifest, Trial
from evalgate.store import RunFolder
from evalgate.tables import pack, unpack

MakeHaystack = Callable[..., tuple[list[Context], list[Trial]]]
MakeManifest = Callable[..., Manifest]


@pytest.fixture
def running(tmp_path: Path, make_manifest: MakeManifest, make_haystack: MakeHaystack) -> RunFolder:
    """Give a run of three haystacks that is not finished."""
    folder = RunFolder.create(tmp_path / "run", make_manifest())
    for seed in (2, 0, 1):
        folder.write_part(seed, 0, *make_haystack(seed))
    return folder


@pytest.fixture
def complete(running: RunFolder) -> RunFolder:
    """Give a run of three haystacks that is finished."""
    running.finish(running.manifest(), {"prefilled_tokens": 3000})
    return running


def test_finished_run_holds_all_in_order(running: RunFolder, make_haystack: MakeHaystack) -> None:
    """A finished run holds every trial and context once, by seed, stream and trial id, and no parts."""
    manifest = running.finish(running.manifest(), {"b": 2, "a": 1})

    expected_trials = sorted((t for s in range(3) for t in make_haystack(s)[1]), key=lambda t: (t.seed, t.trial_id))
    assert running.trials() == expected_trials
    assert running.contexts() == [c for s in range(3) for c in make_haystack(s)[0]]
    assert running.counters() == {"a": 1, "b": 2}
    assert running.verify() == manifest == running.manifest()
    assert manifest.status == "complete"
    assert set(manifest.files) == {"trials.parquet", "contexts.parquet", "counters.json"}
    assert not (running.path / "parts").exists()


def test_running_run_shows_what_is_committed(running: RunFolder) -> None:
    """Trials and contexts of a run that is not finished are those of its parts."""
    assert [t.seed for t in running.trials()] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [c.seed for c in running.contexts()] == [0, 1, 2]
    assert running.done() == {(0, 0), (1, 0), (2, 0)}
    assert running.counters() == {}


def test_part_is_replaced_not_doubled(running: RunFolder, make_haystack: MakeHaystack) -> None:
    """A haystack that is committed again takes the place of its first part."""
    running.write_part(1, 0, *make_haystack(1, lost=frozenset({"middle"})))

    assert len(running.trials()) == 9
    assert sum(t.outcome == "wrong" for t in running.trials()) == 1


@pytest.mark.parametrize("keep", [0, 1, 4, 100, -1, -8])
def test_torn_part_is_dropped(running: RunFolder, keep: int) -> None:
    """A part that is cut anywhere is deleted, so that its haystack is asked again; the others stay."""
    part = running.path / "parts" / "1-0.parquet"
    part.write_bytes(part.read_bytes()[:keep])

    assert len(running.trials()) == 6
    assert part.exists(), "a reader changes nothing"
    assert running.done() == {(0, 0), (2, 0)}
    assert not part.exists()


def test_part_under_another_name_is_dropped(running: RunFolder) -> None:
    """A part that was copied to another haystack's name counts for neither twice nor wrongly."""
    parts = running.path / "parts"
    (parts / "7-0.parquet").write_bytes((parts / "1-0.parquet").read_bytes())

    assert running.done() == {(0, 0), (1, 0), (2, 0)}
    assert len(running.trials()) == 9


def test_strange_files_in_parts_are_left_alone(running: RunFolder) -> None:
    """A file that is no part is neither read nor deleted, not even on completion."""
    note = running.path / "parts" / "note.txt"
    note.write_text("mine")

    assert len(running.done()) == 3
    running.finish(running.manifest(), {})
    assert note.read_text() == "mine"
    assert running.verify().status == "complete"


def test_same_trial_in_two_haystacks_is_refused(running: RunFolder, make_haystack: MakeHaystack) -> None:
    """A trial id that two haystacks hold is refused, and the parts stay."""
    contexts, trials = make_haystack(3)
    fields = {name: getattr(trials[0], name) for name in trials[0].__dataclass_fields__}
    running.write_part(3, 0, contexts, [Trial(**{**fields, "trial_id": "trial-0-0-front"})])

    with pytest.raises(InvalidRunError, match="trial-0-0-front more than once"):
        running.finish(running.manifest(), {})
    assert len(list((running.path / "parts").glob("*.parquet"))) == 4


@pytest.mark.parametrize(
    ("seed", "stream", "wrong"),
    [
        (0, 0, "no trials"),
        (5, 0, "other haystacks"),
        (1, 2, "other haystacks"),
        (1, 0, "a trial twice"),
        (1, 0, "lacks"),
    ],
    ids=["empty", "other-seed", "other-stream", "twice", "orphan"],
)
def test_part_that_is_not_the_haystack_is_refused(
    running: RunFolder, make_haystack: MakeHaystack, seed: int, stream: int, wrong: str
) -> None:
    """Records of another haystack, none at all, doubled ones or orphans are refused before the disk."""
    contexts, trials = make_haystack(1)
    if wrong == "no trials":
        trials = []
    if wrong == "a trial twice":
        trials = [*trials, trials[0]]
    if wrong == "lacks":
        contexts = []

    with pytest.raises(InvalidRunError, match=wrong):
        running.write_part(seed, stream, contexts, trials)


def test_second_run_in_one_folder_is_refused(running: RunFolder, make_manifest: MakeManifest) -> None:
    """A folder that holds a run takes no other."""
    with pytest.raises(MismatchError, match="already holds a run"):
        RunFolder.create(running.path, make_manifest())


def test_open_names_what_is_missing(tmp_path: Path) -> None:
    """A folder that is not there, or is no run, is an invalid run with the next step."""
    with pytest.raises(InvalidRunError, match="does not exist; make it with"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(InvalidRunError, match=r"found no manifest\.json"):
        RunFolder.open(tmp_path)


def test_partial_run_is_not_verified(running: RunFolder) -> None:
    """A run that is not complete says how far it is, whether anyone is at it, and what to do."""
    running.write_manifest(running.manifest().model_copy(update={"haystacks": 7}))

    with pytest.raises(InvalidRunError, match="is interrupted: 3 of 7 haystacks are kept; finish it with the same"):
        running.verify()
    with running.exclusive(), pytest.raises(InvalidRunError, match="is running: 3 of 7 haystacks are kept; wait"):
        running.verify()


def test_manifest_that_names_no_haystacks_counts_what_is_kept(running: RunFolder) -> None:
    """A number that nobody recorded is not made up."""
    running.write_manifest(running.manifest().model_copy(update={"haystacks": None}))

    with pytest.raises(InvalidRunError, match="interrupted: 3 haystacks are kept"):
        running.verify()


def test_state_says_whether_a_process_is_at_it(complete: RunFolder) -> None:
    """A run is running while a live process holds it, interrupted when that died, and complete for good."""
    assert complete.state() == "complete"
    complete.write_manifest(complete.manifest().model_copy(update={"status": "running"}))
    code = "import sys; from pathlib import Path; from evalgate.store import RunFolder\n"
    code += "with RunFolder(Path(sys.argv[1])).exclusive(): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(complete.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "held\n"
        assert [complete.state(), complete.state()] == ["running", "running"]
        writer.kill()

    assert complete.state() == "interrupted"


def test_run_without_trials_cannot_complete(tmp_path: Path, make_manifest: MakeManifest) -> None:
    """An empty run is never complete."""
    folder = RunFolder.create(tmp_path / "run", make_manifest())

    with pytest.raises(InvalidRunError, match="holds no trials"):
        folder.finish(folder.manifest(), {})
    assert folder.manifest().status == "running"


def test_complete_run_of_no_trials_is_empty(complete: RunFolder) -> None:
    """A complete manifest over a table without rows is an invalid run, whoever wrote it."""
    content = pack(Trial, [])
    (complete.path / "trials.parquet").write_bytes(content)
    manifest = complete.manifest()
    files = {**manifest.files, "trials.parquet": hashlib.sha256(content).hexdigest()}
    complete.write_manifest(manifest.model_copy(update={"files": files}))

    with pytest.raises(InvalidRunError, match="is empty"):
        complete.verify()


@pytest.mark.parametrize("name", ["trials.parquet", "contexts.parquet", "counters.json", "manifest.json"])
def test_missing_file_is_an_invalid_run(complete: RunFolder, name: str) -> None:
    """A run that lacks one of its files is invalid, not empty and not tampered."""
    (complete.path / name).unlink()

    with pytest.raises(InvalidRunError, match=name):
        complete.verify()


@pytest.mark.parametrize("name", ["trials.parquet", "contexts.parquet", "counters.json", "manifest.json"])
@pytest.mark.parametrize("share", [0, 0.5, 0.9], ids=["empty", "half", "cut"])
def test_truncated_file_is_an_invalid_run(complete: RunFolder, name: str, share: float) -> None:
    """A file that no longer parses is an invalid run."""
    path = complete.path / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])

    with pytest.raises(InvalidRunError, match=name):
        complete.verify()


def test_edited_trials_are_tampered(complete: RunFolder) -> None:
    """One answer turned into a right one by hand, in a file that still parses, is tampering."""
    table = pq.read_table(complete.path / "trials.parquet")
    answers = table["answer"].to_pylist()
    answers[0] = "something else"
    edited = table.set_column(table.schema.get_field_index("answer"), table.schema.field("answer"), pa.array(answers))
    pq.write_table(edited, complete.path / "trials.parquet")

    for look in (complete.verify, complete.trials, complete.done):
        with pytest.raises(TamperedError, match=r"trials\.parquet was changed"):
            look()


def test_dropped_rows_are_tampered(complete: RunFolder) -> None:
    """Failures that were cut out of the table are tampering."""
    rows = unpack(Trial, (complete.path / "trials.parquet").read_bytes())
    (complete.path / "trials.parquet").write_bytes(pack(Trial, rows[1:]))

    with pytest.raises(TamperedError):
        complete.verify()


def test_edited_counters_are_tampered(complete: RunFolder) -> None:
    """Counters changed by hand are tampering."""
    (complete.path / "counters.json").write_text('{"prefilled_tokens": 1}\n')

    with pytest.raises(TamperedError, match=r"counters\.json"):
        complete.verify()


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed_set", "other"), ("status", "partial"), ("files", {}), ("sha256", "0" * 64), ("seeds", 2)],
)
def test_edited_manifest_is_tampered(complete: RunFolder, field: str, value: object) -> None:
    """Any field of the manifest changed by hand is tampering, its own digest among them."""
    path = complete.path / "manifest.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, field: value}))

    with pytest.raises(TamperedError, match=r"manifest\.json was changed"):
        complete.verify()


def test_manifest_laid_out_anew_is_the_same(complete: RunFolder) -> None:
    """White space and the order of fields are not what the digest speaks of."""
    path = complete.path / "manifest.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(body.items()))))

    assert complete.verify().status == "complete"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"3",
        b'{"sha256": "0"}',
        b"\xff\xfe",
        b'{"schema_version": 9, "sha256": ""}',
        b"[" * 100000,
    ],
    ids=["empty", "cut", "list", "null", "number", "no-fields", "not-utf8", "other-version", "deep"],
)
def test_unreadable_manifest_is_an_invalid_run(running: RunFolder, content: bytes) -> None:
    """A manifest that is not one is an invalid run, never a crash."""
    (running.path / "manifest.json").write_bytes(content)

    with pytest.raises(InvalidRunError, match=r"manifest\.json"):
        running.manifest()


def test_table_of_other_columns_is_an_invalid_run(complete: RunFolder) -> None:
    """A parquet file that is not of trials is invalid and says which columns differ."""
    pq.write_table(pa.table({"trial_id": ["a"], "score": [1.0]}), complete.path / "trials.parquet")

    with pytest.raises(InvalidRunError, match=r"unknown \['score'\]"):
        complete.verify()


def test_verdict_lies_beside_the_run(complete: RunFolder) -> None:
    """A verdict is one JSON file under its policy's name; writing it again replaces it."""
    complete.write_verdict("smoke@1.0.0", {"status": "PASS"})
    complete.write_verdict("demo@1.0.0-base", {"status": "PASS"})
    path = complete.write_verdict("smoke@1.0.0", {"status": "BLOCK"})

    assert path == complete.path / "verdicts" / "smoke@1.0.0.json"
    assert json.loads(path.read_text()) == {"status": "BLOCK"}
    assert list(complete.verdicts()) == ["demo@1.0.0-base", "smoke@1.0.0"]
    assert complete.verdicts()["smoke@1.0.0"] == path.read_bytes()
    assert complete.verify().status == "complete"


@pytest.mark.parametrize("name", ["verdicts/smoke@1.0.0.json", "digests/smoke@1.0.0.json.sha256"])
def test_edited_verdict_is_tampered(complete: RunFolder, name: str) -> None:
    """A verdict that was changed by hand, or whose digest is gone, is not shown as one."""
    complete.write_verdict("smoke@1.0.0", {"status": "BLOCK"})
    (complete.path / name).write_text('{"status": "PASS"}')

    with pytest.raises(TamperedError, match="judge again"):
        complete.verdicts()


def test_run_without_verdicts_has_none(complete: RunFolder) -> None:
    """A run that was never judged has no verdicts."""
    assert complete.verdicts() == {}


def test_more_haystacks_join_a_complete_run(
    complete: RunFolder, make_manifest: MakeManifest, make_haystack: MakeHaystack
) -> None:
    """A complete run that is carried on keeps what it had and counts nothing twice."""
    complete.write_manifest(complete.manifest().model_copy(update={"status": "running", "seeds": 5}))
    for seed in (3, 4):
        complete.write_part(seed, 0, *make_haystack(seed))

    assert len(complete.done()) == 5
    complete.finish(make_manifest(seeds=5), {})
    assert len(complete.trials()) == 15
    assert complete.verify().seeds == 5


def test_leftover_parts_are_not_counted_again(complete: RunFolder, make_haystack: MakeHaystack) -> None:
    """Parts that a killed process left beside its merged results add nothing."""
    complete.write_part(0, 0, *make_haystack(0))

    assert len(complete.trials()) == 9
    complete.finish(complete.manifest(), {})
    assert len(complete.trials()) == 9
    assert not (complete.path / "parts").exists()


def test_one_writer_at_a_time(running: RunFolder) -> None:
    """A second process that would write the same folder is told so; the hold ends with its process."""
    code = "import sys; from pathlib import Path; from evalgate.store import RunFolder\n"
    code += "with RunFolder(Path(sys.argv[1])).exclusive(): print('held')"
    command = [sys.executable, "-c", code, str(running.path)]
    with running.exclusive():
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
    allowed = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "another process is writing" in refused.stderr
    assert allowed.stdout == "held\n"


def test_writer_sweeps_what_killed_writers_left(running: RunFolder) -> None:
    """Half-written files of a killed process are gone once the next writer holds the folder."""
    left = running.path / "parts" / f".9-0.parquet.123{disk.TEMPORARY}"
    left.write_bytes(b"half")

    assert len(running.trials()) == 9
    with running.exclusive():
        assert not left.exists()
