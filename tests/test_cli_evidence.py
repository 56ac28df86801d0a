"""`evalgate evidence`: from a key to a deploy that goes on or does not, as a pipeline would call it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures_evidence import Pair

from evalgate.errors import ExitCode
from evalgate.gates.policy import load_policy

Evalgate = Callable[..., Any]


@pytest.fixture
def signed(evalgate: Evalgate, own_runs: dict[str, Path], keys: dict[str, Pair], tmp_path: Path) -> dict[str, Path]:
    """Evidence files of runs that passed and blocked, entered in ``ledger``."""
    files = {name: tmp_path / "evidence" / f"{name}.intoto.jsonl" for name in ("good", "bad")}
    for name, file in files.items():
        options = ("--policy", "demo", "--key", keys["ours"].private, "--ledger", tmp_path / "ledger.jsonl")
        assert evalgate("evidence", "sign", own_runs[name], *options, "--out", file).code == ExitCode.PASS
    return files | {"ledger": tmp_path / "ledger.jsonl"}


def test_from_key_to_deploy(evalgate: Evalgate, own_runs: dict[str, Path], tmp_path: Path) -> None:
    """keygen, sign, verify and ledger in order: a PASS that fits exits 0, and says what was not asked."""
    key, file, ledger = (tmp_path / name for name in ("key", "good.intoto.jsonl", "ledger.jsonl"))
    assert "keep it secret" in evalgate("evidence", "keygen", "--out", key).out
    done = evalgate(
        "evidence", "sign", own_runs["good"], "--policy", "demo@1.0.0", "--key", key, "--out", file, "--ledger", ledger
    )
    assert (done.code, done.err) == (0, "")
    assert "attempt 1 on seed set main" in done.out
    head = done.out.split()[-1]

    asked = ("--signer", f"{key}.pub", "--subject", f"weights={'1' * 64}", "--policy", "demo")
    checked = evalgate("evidence", "verify", file, *asked, "--ledger", ledger, "--head", head)
    assert (checked.code, checked.err) == (0, "")
    assert [line.split()[0] for line in checked.out.splitlines()] == ["ok"] * 5 + ["not", "ok", "ok"]
    assert f"unbroken: 1 entries, head {head}" in evalgate("evidence", "ledger", ledger, "--signer", f"{key}.pub").out


def test_a_block_is_signed_and_stops(evalgate: Evalgate, signed: dict[str, Path], keys: dict[str, Pair]) -> None:
    """Signing a BLOCK is done with 0, verifying it exits 1 and says every check."""
    told = evalgate("evidence", "verify", signed["bad"], "--signer", keys["ours"].public, "--json")
    body = json.loads(told.out)

    assert told.code == body["exit_code"] == ExitCode.BLOCK
    failed = [check for check in body["checks"] if check["status"] == "failed"]
    assert [check["check"] for check in failed] == ["result"]
    assert "multikey@8" in failed[0]["found"]


def test_failures_are_told(evalgate: Evalgate, signed: dict[str, Path], keys: dict[str, Pair]) -> None:
    """Wrong signer, subject, policy, and an old run, all in one call, each with found, expected and next step."""
    options = ("--subject", "9" * 64, "--policy", "serving-default", "--max-age", "1h")
    told = evalgate("evidence", "verify", signed["good"], "--signer", keys["theirs"].public, *options)

    assert told.code == ExitCode.REFUSED
    lines = told.out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("FAILED")] == [
        "signer:",
        "subject:",
        "policy:",
        "age:",
    ]
    assert sum(line.startswith("           expected ") for line in lines) == 4


def test_changed_file_is_tampered(evalgate: Evalgate, signed: dict[str, Path], keys: dict[str, Pair]) -> None:
    """A file in which BLOCK evidence got another's statement, or a torn one, does not pass."""
    lines = signed["bad"].read_bytes().splitlines(keepends=True)
    good = signed["good"].read_bytes().splitlines(keepends=True)
    signed["bad"].write_bytes(good[0] + lines[1])
    assert evalgate("evidence", "verify", signed["bad"], "--signer", keys["ours"].public).code == ExitCode.TAMPERED
    signed["bad"].write_bytes(good[0] + good[1][:-40])
    assert evalgate("evidence", "verify", signed["bad"], "--signer", keys["ours"].public).code == ExitCode.ERROR


def test_subject_may_be_a_file(
    evalgate: Evalgate, signed: dict[str, Path], keys: dict[str, Pair], tmp_path: Path
) -> None:
    """A file stands for its digest: other weights than those judged are refused."""
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    options = ("--signer", keys["ours"].public, "--subject", tmp_path / "model.safetensors", "--json")
    told = json.loads(evalgate("evidence", "verify", signed["good"], *options).out)

    (subject,) = (check for check in told["checks"] if check["check"] == "subject")
    assert subject["expected"] == f"any {hashlib.sha256(b'other weights').hexdigest()[:12]}"
    assert told["exit_code"] == ExitCode.REFUSED


def test_ledger_is_told(evalgate: Evalgate, signed: dict[str, Path], keys: dict[str, Pair]) -> None:
    """Both attempts on the seed set are listed; a verdict turned in the file is TAMPERED."""
    body = json.loads(evalgate("evidence", "ledger", signed["ledger"], "--signer", keys["ours"].public, "--json").out)
    assert body["attempts"] == [{"suite": "demo@1.0.0", "seed_set": "main", "runs": ["good", "bad"]}]
    assert "2 attempts" in evalgate("evidence", "ledger", signed["ledger"], "--signer", keys["ours"].public).out
    signed["ledger"].write_bytes(signed["ledger"].read_bytes().replace(b'"BLOCK"', b'"PASS"'))
    ended = evalgate("evidence", "ledger", signed["ledger"], "--signer", keys["ours"].public)
    assert ended.code == ExitCode.TAMPERED
    assert "entry 2 was changed after it was signed" in ended.err


def test_only_the_policys_own_verdict_is_signed(
    evalgate: Evalgate, own_runs: dict[str, Path], keys: dict[str, Pair], tmp_path: Path
) -> None:
    """A verdict that is not there, forged, or given under another policy of the same name gets no signature."""
    out = tmp_path / "evidence.jsonl"
    options = ("--key", keys["ours"].private, "--out", out)
    missing = evalgate("evidence", "sign", own_runs["good"], "--policy", "smoke", *options)
    assert missing.code == ExitCode.REFUSED
    assert "judge it first with `evalgate gate" in missing.err
    text = evalgate("policy", "new", "demo", "--suite", "demo").out.replace("min: 0.90", "min: 0.50")
    (tmp_path / "demo.yaml").write_text(text)
    other = evalgate("evidence", "sign", own_runs["bad"], "--policy", tmp_path / "demo.yaml", *options)
    assert other.code == ExitCode.REFUSED
    assert "under another policy demo@1.0.0" in other.err
    verdict = own_runs["bad"] / "verdicts" / "demo@1.0.0.json"
    verdict.write_text(verdict.read_text().replace("BLOCK", "PASS"))
    assert evalgate("evidence", "sign", own_runs["bad"], "--policy", "demo", *options).code == ExitCode.TAMPERED
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--policy-digest", "abc"), ExitCode.REFUSED, "64 hex digits"),
        (("--policy", "demo", "--policy-digest", "1" * 64), ExitCode.REFUSED, "give one of them"),
        (("--policy", "deno"), ExitCode.REFUSED, "did you mean demo?"),
        (("--subject", "weights"), ExitCode.REFUSED, "64 hex digits"),
        (("--max-age", "old"), ExitCode.REFUSED, "such as 30d"),
        (("--head", "1" * 64), ExitCode.REFUSED, "name it with --ledger"),
        (("--signer", "nowhere.pub"), ExitCode.ERROR, "does not exist"),
    ],
)
def test_bad_input_is_told(
    evalgate: Evalgate, signed: dict[str, Path], keys: dict[str, Pair], options: tuple[str, ...], code: int, words: str
) -> None:
    """Every wrong input has its code and says the next step."""
    ended = evalgate("evidence", "verify", signed["good"], "--signer", keys["ours"].public, *options)

    assert ended.code == code
    assert words in ended.err
    assert "Traceback" not in ended.err


def test_nothing_is_overwritten(
    evalgate: Evalgate, own_runs: dict[str, Path], signed: dict[str, Path], keys: dict[str, Pair]
) -> None:
    """Evidence that is there stays, and no file of a run is written over."""
    before = signed["ledger"].read_bytes()
    options = ("--policy", "demo", "--key", keys["ours"].private, "--ledger", signed["ledger"])
    for out in (signed["good"], own_runs["good"] / "verdicts" / "new.json"):
        assert evalgate("evidence", "sign", own_runs["good"], *options, "--out", out).code == ExitCode.REFUSED
    assert signed["ledger"].read_bytes() == before
    assert evalgate("evidence", "keygen", "--out", keys["ours"].private).code == ExitCode.REFUSED


def test_policy_may_be_named_by_digest(evalgate: Evalgate, signed: dict[str, Path], keys: dict[str, Pair]) -> None:
    """The digest that `policy lint` prints names the policy too."""
    digest = load_policy("demo").digest
    options = ("--signer", keys["ours"].public, "--policy-digest")

    assert evalgate("evidence", "verify", signed["good"], *options, digest).code == ExitCode.PASS
    assert evalgate("evidence", "verify", signed["good"], *options, f"sha256:{digest.upper()}").code == ExitCode.PASS
    assert evalgate("evidence", "verify", signed["good"], *options, "8" * 64).code == ExitCode.REFUSED
