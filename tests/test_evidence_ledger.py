"""The ledger: nothing that was entered can be taken out, changed, moved or written anew unseen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures_evidence import NOW, SIGNED, Pair, payload

from evalgate.errors import ExitCode, InvalidEvidenceError, TamperedError
from evalgate.gates.evidence import Signed, sign
from evalgate.gates.evidence_check import Demands, check_evidence, exit_code
from evalgate.gates.evidence_ledger import Ledger
from evalgate.gates.verdict import Verdict
from evalgate.store import RunFolder
from evalgate.versioned import canonical_json

Lines = list[bytes]


@pytest.fixture(scope="module")
def written(
    tmp_path_factory: pytest.TempPathFactory, judged_runs: dict[str, tuple[RunFolder, Verdict]], keys: dict[str, Pair]
) -> tuple[Path, list[Signed]]:
    """A ledger of four entries, and what was signed; `bad` is in it twice, under two verdicts."""
    path = tmp_path_factory.mktemp("ledger") / "deep" / "ledger.jsonl"
    names = ("good", "bad", "paired", "tiny")
    signer = keys["ours"].signer
    return path, [sign(*judged_runs[name], signer, signed=SIGNED, ledger=path) for name in names]


@pytest.fixture
def ledger(written: tuple[Path, list[Signed]], tmp_path: Path) -> Path:
    """A copy of the ledger, to spoil."""
    return Path(shutil.copy(written[0], tmp_path / "ledger.jsonl"))


def test_entries_chain_and_count_attempts(written: tuple[Path, list[Signed]], keys: dict[str, Pair]) -> None:
    """Entries follow each other by digest; a run that is judged again is no new attempt, another seed set is none."""
    path, signed = written
    book = Ledger.read(path, [keys["ours"].pin])
    entries = [line.entry for line in book.lines]

    assert [entry.number for entry in entries] == [1, 2, 3, 4]
    assert [entry.previous for entry in entries] == [None, *(entry.digest for entry in entries[:-1])]
    assert [entry.status for entry in entries] == ["PASS", "BLOCK", "BLOCK", "INCONCLUSIVE"]
    assert [entry.evidence_sha256 for entry in entries] == [done.evidence.statement.digest for done in signed]
    assert book.attempts(entries[0].suite, "main") == ["good", "bad"]
    assert book.attempts(entries[0].suite, "fresh") == []
    assert [done.attempts for done in signed] == [1, 2, 2, 1]
    before = [payload(done.evidence.statement)["predicate"]["ledger"] for done in signed]
    assert [said["entries"] for said in before] == [0, 1, 2, 3]
    assert [said["head"] for said in before] == [entry.previous for entry in entries]


def resealed(line: bytes, pair: Pair, **changes: Any) -> bytes:
    """A line whose entry has other values, under a signature of ``pair``."""
    from evalgate.gates.evidence_envelope import seal
    from evalgate.gates.evidence_ledger import PAYLOAD_TYPE

    entry = json.loads(line)["entry"] | changes
    signature = seal(canonical_json(entry), PAYLOAD_TYPE, pair.signer).signatures[0]
    return canonical_json({"entry": entry, "keyid": signature.keyid, "sig": signature.sig})


def edited(line: bytes, **changes: Any) -> bytes:
    """A line whose entry has other values, under its old signature."""
    body = json.loads(line)
    return canonical_json(body | {"entry": body["entry"] | changes})


def other(line: bytes, **fields: str) -> bytes:
    """A line with another signature or signer."""
    return canonical_json(json.loads(line) | fields)


def renumbered(lines: Lines) -> Lines:
    """Lines in their order, numbered from 1, under their old signatures."""
    return [edited(line, number=at) for at, line in enumerate(lines, 1)]


ATTACKS: dict[str, Callable[[Lines, Pair], Lines]] = {
    "remove the first": lambda lines, _: lines[1:],
    "remove one between": lambda lines, _: [*lines[:1], *lines[2:]],
    "swap two": lambda lines, _: [lines[0], lines[2], lines[1], lines[3]],
    "turn around": lambda lines, _: lines[::-1],
    "repeat one": lambda lines, _: [*lines, lines[-1]],
    "repeat one between": lambda lines, _: [*lines[:2], *lines[1:]],
    "edit a verdict": lambda lines, _: [lines[0], edited(lines[1], status="PASS"), *lines[2:]],
    "edit the last": lambda lines, _: [*lines[:3], edited(lines[3], seed_set="fresh")],
    "edit and sign by another": lambda lines, pair: [lines[0], resealed(lines[1], pair, status="PASS"), *lines[2:]],
    "append by another": lambda lines, pair: [*lines, resealed(lines[3], pair, number=5)],
    "take out and number anew": lambda lines, _: renumbered([lines[0], *lines[2:]]),
    "borrow a signature": lambda lines, _: [lines[0], other(lines[1], sig=json.loads(lines[0])["sig"]), *lines[2:]],
    "write with blanks": lambda lines, _: [json.dumps(json.loads(lines[0])).encode(), *lines[1:]],
    "name another signer": lambda lines, pair: [other(lines[0], keyid=pair.pin.keyid), *lines[1:]],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_seen(ledger: Path, keys: dict[str, Pair], attack: str) -> None:
    """Whatever is done to the lines without the key is TAMPERED."""
    lines = ledger.read_bytes().splitlines()
    ledger.write_bytes(b"".join(line + b"\n" for line in ATTACKS[attack](lines, keys["theirs"])))

    with pytest.raises(TamperedError, match="put back the ledger"):
        Ledger.read(ledger, [keys["ours"].pin])


def leaves(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Path of every value of an entry."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*at, key))
    else:
        yield at


def test_no_field_of_an_entry_can_change(ledger: Path, keys: dict[str, Pair]) -> None:
    """Every value of every entry, changed under the old signature, is seen."""
    lines = ledger.read_bytes().splitlines()
    tried = 0
    for at, line in enumerate(lines):
        for path in leaves(json.loads(line)["entry"]):
            body = json.loads(line)
            place = body["entry"]
            for key in path[:-1]:
                place = place[key]
            old = place[path[-1]]
            place[path[-1]] = old + 1 if isinstance(old, int) else f"{old}0"
            ledger.write_bytes(b"\n".join([*lines[:at], canonical_json(body), *lines[at + 1 :], b""]))
            with pytest.raises(TamperedError):
                Ledger.read(ledger, [keys["ours"].pin])
            tried += 1

    assert tried == 4 * 17


def test_signed_rewriting_is_seen_by_the_chain(ledger: Path, keys: dict[str, Pair]) -> None:
    """Who has the key and rewrites one entry breaks the chain; who rewrites all after it misses the known head."""
    ours = keys["ours"]
    lines = ledger.read_bytes().splitlines()
    head = Ledger.read(ledger, [ours.pin]).head
    lines[1] = resealed(lines[1], ours, status="PASS")
    ledger.write_bytes(b"".join(line + b"\n" for line in lines))
    with pytest.raises(TamperedError, match="entry 3 follows another entry"):
        Ledger.read(ledger, [ours.pin])
    for at in (2, 3):
        lines[at] = resealed(lines[at], ours, previous=_digest(lines[at - 1]))
    ledger.write_bytes(b"".join(line + b"\n" for line in lines))
    assert Ledger.read(ledger, [ours.pin]).head != head
    with pytest.raises(TamperedError, match="entries at the end were cut off"):
        Ledger.read(ledger, [ours.pin], head=head)


def _digest(line: bytes) -> str:
    import hashlib

    return hashlib.sha256(canonical_json(json.loads(line)["entry"])).hexdigest()


def test_tail_that_was_cut_off_is_seen(ledger: Path, written: tuple[Path, list[Signed]], keys: dict[str, Pair]) -> None:
    """A shorter ledger is whole in itself; a head that was kept, or the evidence of what was cut off, shows it."""
    ours = keys["ours"]
    head = Ledger.read(ledger, [ours.pin]).head
    early = Ledger.read(ledger, [ours.pin]).lines[1].entry.digest
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:3]))

    assert len(Ledger.read(ledger, [ours.pin], head=early).lines) == 3
    with pytest.raises(TamperedError, match="entries at the end were cut off"):
        Ledger.read(ledger, [ours.pin], head=head)
    for at, done in enumerate(written[1]):
        found = check_evidence(done.evidence, Demands(signers=[ours.pin], now=NOW, ledger=ledger))
        (told,) = (finding for finding in found if finding.check == "ledger")
        assert told.status == ("failed" if at == 3 else "ok"), told
    assert "its end was cut off" in told.found
    assert exit_code(found) == ExitCode.TAMPERED
    ledger.write_bytes(b"")
    assert Ledger.read(ledger, [ours.pin]).lines == ()
    with pytest.raises(TamperedError, match="entries at the end were cut off"):
        Ledger.read(ledger, [ours.pin], head=early)


def test_evidence_must_stand_in_its_place(
    ledger: Path,
    written: tuple[Path, list[Signed]],
    judged_runs: dict[str, tuple[RunFolder, Verdict]],
    evidence: dict[str, Any],
    keys: dict[str, Pair],
    tmp_path: Path,
) -> None:
    """Evidence of another ledger, or of none, does not stand in this one."""
    ours = keys["ours"]
    other = sign(*judged_runs["good"], ours.signer, signed="2025-01-02T00:00:01Z", ledger=tmp_path / "other.jsonl")
    asked = Demands(signers=[ours.pin], now=NOW, ledger=ledger)

    for shown, words in ((other.evidence, "of other evidence"), (evidence["good"], "without a ledger")):
        findings = check_evidence(shown, asked)
        assert [finding.check for finding in findings if finding.status == "failed"] == ["ledger"]
        assert words in next(finding.found for finding in findings if finding.check == "ledger")
        assert exit_code(findings) == ExitCode.TAMPERED
    assert exit_code(check_evidence(written[1][0].evidence, asked)) == ExitCode.PASS


def test_nothing_is_entered_after_a_broken_chain(
    ledger: Path, judged_runs: dict[str, tuple[RunFolder, Verdict]], keys: dict[str, Pair]
) -> None:
    """A ledger that was changed, or that another signer wrote, is not gone on with, and stays as it is."""
    before = ledger.read_bytes()
    with pytest.raises(TamperedError, match="which is not trusted"):
        sign(*judged_runs["good"], keys["theirs"].signer, signed=SIGNED, ledger=ledger)
    assert ledger.read_bytes() == before
    ledger.write_bytes(before.replace(b'"BLOCK"', b'"PASS"', 1))
    with pytest.raises(TamperedError, match="entry 2 was changed"):
        sign(*judged_runs["good"], keys["ours"].signer, signed=SIGNED, ledger=ledger)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"entry": {}, "keyid": "1", "sig": ""}', b"\xff"])
def test_what_is_no_entry_is_told(ledger: Path, keys: dict[str, Pair], line: bytes) -> None:
    """A torn line is broken, and its number is named."""
    ledger.write_bytes(ledger.read_bytes() + line + b"\n")

    with pytest.raises(InvalidEvidenceError, match="line 5"):
        Ledger.read(ledger, [keys["ours"].pin])


def test_missing_ledger_is_told(tmp_path: Path, keys: dict[str, Pair]) -> None:
    """A ledger that is not there is none to check, and none to make where its head is known."""
    with pytest.raises(InvalidEvidenceError, match="does not exist"):
        Ledger.read(tmp_path / "ledger.jsonl", [keys["ours"].pin])
    with pytest.raises(InvalidEvidenceError, match="does not exist"):
        Ledger.read(tmp_path / "ledger.jsonl", [keys["ours"].pin], missing_ok=True, head="1" * 64)
