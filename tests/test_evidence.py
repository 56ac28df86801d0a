"""Evidence: what is signed, that no field of it can change, and every reason for which it stops a deploy."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fixtures_evidence import FINISHED, NOW, SIGNED, Pair, forged, payload, sealed

from evalgate.cli.age import parse_age
from evalgate.errors import ExitCode, InvalidEvidenceError, InvalidRunError, RefusedError, TamperedError
from evalgate.gates.evidence import Evidence, sign
from evalgate.gates.evidence_check import Demands, Finding, check_evidence, exit_code, parse_subject
from evalgate.gates.evidence_statement import STATEMENT, summary, trials_digest
from evalgate.gates.policy import load_policy
from evalgate.gates.verdict import Verdict
from evalgate.records import Outcome
from evalgate.store import RunFolder

Judged = dict[str, tuple[RunFolder, Verdict]]

PROVENANCE = "https://slsa.dev/provenance/v1"


def demands(keys: dict[str, Pair], **fields: Any) -> Demands:
    """What a careful pipeline asks, with other ``fields``."""
    usual: dict[str, Any] = {"signers": [keys["ours"].pin], "now": NOW}
    return Demands(**usual | fields)


def failing(findings: list[Finding]) -> list[str]:
    """Names of the checks that failed."""
    return [finding.check for finding in findings if finding.status == "failed"]


def resigned(evidence: Evidence, pair: Pair, **changes: Any) -> Evidence:
    """Evidence that ``pair`` really signed, whose statement has other ``changes``."""
    body = payload(evidence.statement) | changes
    first = sealed(body, pair)
    return Evidence(first, sealed(summary(body, first.digest), pair))


def test_evidence_of_a_pass_lets_it_go(evidence: dict[str, Evidence], keys: dict[str, Pair]) -> None:
    """Everything that can be asked holds, and the code is 0."""
    asked = demands(
        keys,
        subjects=[parse_subject(f"weights={'1' * 64}"), parse_subject("3" * 64)],
        policy_digest=load_policy("demo").digest,
        max_age=timedelta(days=2),
    )
    findings = check_evidence(evidence["good"], asked)

    assert {finding.check: finding.status for finding in findings} == {
        "signature": "ok",
        "predicate": "ok",
        "summary": "ok",
        "subject": "ok",
        "policy": "ok",
        "age": "ok",
        "ledger": "not-asked",
        "result": "ok",
    }
    assert exit_code(findings) == ExitCode.PASS


def test_statement_is_of_verdict_and_run(judged_runs: Judged, evidence: dict[str, Evidence]) -> None:
    """Subjects are the deployment's digests; cells, policy and run are those of the files, number by number."""
    run, verdict = judged_runs["paired"]
    manifest = run.manifest()
    body = payload(evidence["paired"].statement)

    assert body["_type"] == STATEMENT == "https://in-toto.io/Statement/v1"
    assert {subject["name"]: subject["digest"]["sha256"] for subject in body["subject"]} == {
        "weights": manifest.model.weights_sha256,
        "config": manifest.model.config_sha256,
        "tokenizer": manifest.model.tokenizer_sha256,
        "profile": manifest.profile.digest,
    }
    stored = json.loads((run.path / "verdicts" / "demo@1.0.0-good.json").read_text())
    del stored["flips"]
    said = body["predicate"]
    assert said["verdict"] == stored
    assert said["verdict"]["policy_body"] == verdict.policy_body
    assert said["run"]["counters"] == run.counters()
    assert said["run"]["versions"] == manifest.versions
    assert said["run"]["finished"] == FINISHED
    assert said["signed"] == SIGNED


def test_summary_is_what_slsa_specifies(evidence: dict[str, Evidence]) -> None:
    """The summary has the fields that SLSA requires, and PASSED only for a PASS."""
    passed, blocked = payload(evidence["good"].summary), payload(evidence["bad"].summary)

    assert passed["predicateType"] == "https://slsa.dev/verification_summary/v1"
    assert passed["subject"] == payload(evidence["good"].statement)["subject"]
    said = passed["predicate"]
    assert {"verifier", "timeVerified", "resourceUri", "policy", "verificationResult", "verifiedLevels"} <= said.keys()
    assert (said["verificationResult"], said["verifiedLevels"]) == ("PASSED", ["EVALGATE_PASS"])
    assert said["policy"]["digest"] == {"sha256": load_policy("demo").digest}
    assert said["inputAttestations"][0]["digest"]["sha256"] == evidence["good"].statement.digest
    blocked_by = blocked["predicate"]
    assert (blocked_by["verificationResult"], blocked_by["verifiedLevels"]) == ("FAILED", ["FAILED"])


def test_no_answer_is_signed(judged_runs: Judged, evidence: dict[str, Evidence]) -> None:
    """No text of a model stands in evidence, so evidence outlives its removal; a digest over all else does."""
    run, verdict = judged_runs["paired"]
    trials = run.trials()
    removed = [dataclasses.replace(trial, answer="") for trial in trials]
    other = [
        dataclasses.replace(trials[0], outcome=Outcome.ERROR),
        *trials[1:-1],
        dataclasses.replace(trials[-1], seed=7),
    ]

    assert any(flip.candidate_answer == "wrong" for flip in verdict.flips)
    assert b'"wrong"' in run._verdict("demo@1.0.0-good")
    assert b'_answer"' not in evidence["paired"].statement.content
    assert payload(evidence["paired"].statement)["predicate"]["run"]["trials_sha256"] == trials_digest(removed)
    assert trials_digest(other) != trials_digest(trials)


def leaves(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Path of every value of a JSON document, empty lists and objects too."""
    if isinstance(value, dict | list) and value:
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*at, key))
    else:
        yield at


def mutated(body: Any, path: tuple[Any, ...]) -> Any:
    """The document with another value at ``path``."""
    copied = copy.deepcopy(body)
    place = copied
    for key in path[:-1]:
        place = place[key]
    old = place[path[-1]]
    if isinstance(old, bool) or old is None or isinstance(old, dict | list):
        place[path[-1]] = "other"
    elif isinstance(old, str):
        place[path[-1]] = old + "0"
    else:
        place[path[-1]] = old + 1
    return copied


@pytest.mark.parametrize("part", ["statement", "summary"])
def test_no_field_can_change(evidence: dict[str, Evidence], keys: dict[str, Pair], part: str) -> None:
    """Every single value of statement and summary, changed under the old signature, is TAMPERED."""
    whole = evidence["paired"]
    envelope = getattr(whole, part)
    body = payload(envelope)
    asked = demands(keys)
    paths = list(leaves(body))
    codes = {
        path: exit_code(check_evidence(whole._replace(**{part: forged(envelope, mutated(body, path))}), asked))
        for path in paths
    }

    assert len(paths) > {"statement": 250, "summary": 15}[part]
    assert {path for path, code in codes.items() if code != ExitCode.TAMPERED} == set()


def test_summary_of_other_evidence_is_told(evidence: dict[str, Evidence], keys: dict[str, Pair]) -> None:
    """A summary that is signed, and is that of another statement, cannot lend its PASSED."""
    findings = check_evidence(evidence["bad"]._replace(summary=evidence["good"].summary), demands(keys))

    assert failing(findings) == ["summary", "result"]
    assert exit_code(findings) == ExitCode.TAMPERED


@pytest.mark.parametrize("path", list(leaves({"a": {"b": [1, {"c": None}], "d": []}})))
def test_leaves_are_found(path: tuple[Any, ...]) -> None:
    """The walk over a document reaches every value."""
    assert path in {("a", "b", 0), ("a", "b", 1, "c"), ("a", "d")}


def test_signed_summary_must_agree(evidence: dict[str, Evidence], keys: dict[str, Pair]) -> None:
    """A summary that its signer signed with any other value than the statement gives is not believed."""
    whole = evidence["bad"]
    body = payload(whole.summary)
    for path in leaves(body):
        if "version" in path or path[-1] in {"_type", "predicateType"}:
            continue
        lying = whole._replace(summary=sealed(mutated(body, path), keys["ours"]))
        assert "summary" in failing(check_evidence(lying, demands(keys))), path


def test_other_signer_is_not_believed(evidence: dict[str, Evidence], keys: dict[str, Pair]) -> None:
    """Evidence that another key signed is refused, and both keys are named; to trust both is possible."""
    theirs = resigned(evidence["good"], keys["theirs"])
    findings = check_evidence(theirs, demands(keys))

    assert failing(findings) == ["signer"]
    assert exit_code(findings) == ExitCode.REFUSED
    assert keys["theirs"].pin.keyid[:12] in findings[0].found
    assert keys["ours"].pin.keyid[:12] in findings[0].expected
    both = demands(keys, signers=[keys["ours"].pin, keys["theirs"].pin])
    assert exit_code(check_evidence(theirs, both)) == ExitCode.PASS


def test_both_lines_must_be_signed(evidence: dict[str, Evidence], keys: dict[str, Pair]) -> None:
    """One trusted signature does not cover the other line."""
    stranger = sealed(payload(evidence["good"].summary), keys["theirs"])

    assert failing(check_evidence(evidence["good"]._replace(summary=stranger), demands(keys))) == ["signer"]


@pytest.mark.parametrize("subject", [f"weights={'9' * 64}", "9" * 64, f"config={'1' * 64}"])
def test_other_subject_is_not_believed(evidence: dict[str, Evidence], keys: dict[str, Pair], subject: str) -> None:
    """Weights that were not judged, or a digest under another name, are refused beside one that fits."""
    wanted = [parse_subject("1" * 64), parse_subject(subject)]
    findings = check_evidence(evidence["good"], demands(keys, subjects=wanted))

    assert failing(findings) == ["subject"]
    assert exit_code(findings) == ExitCode.REFUSED


def test_other_policy_is_not_believed(evidence: dict[str, Evidence], keys: dict[str, Pair]) -> None:
    """A PASS under another policy is none under the one that must hold."""
    findings = check_evidence(evidence["good"], demands(keys, policy_digest=load_policy("serving-default").digest))

    assert failing(findings) == ["policy"]
    assert exit_code(findings) == ExitCode.REFUSED


def test_old_evidence_is_not_believed(evidence: dict[str, Evidence], keys: dict[str, Pair]) -> None:
    """Age counts from the end of the run: exactly at the limit is young enough, and signing again helps nothing."""
    age = timedelta(days=1, hours=12)
    body = payload(evidence["good"].statement)
    again = body["predicate"] | {"signed": "2025-01-02T23:59:00Z"}

    for limit, code in ((age, ExitCode.PASS), (age - timedelta(seconds=1), ExitCode.REFUSED)):
        for shown in (evidence["good"], resigned(evidence["good"], keys["ours"], predicate=again)):
            assert exit_code(check_evidence(shown, demands(keys, max_age=limit))) == code


@pytest.mark.parametrize(
    ("what", "text"),
    [("signed", "2025-01-04T00:00:00Z"), ("signed", "yesterday"), ("finished", "2031-01-01T00:00:00Z")],
)
def test_time_to_come_is_not_believed(
    evidence: dict[str, Evidence], keys: dict[str, Pair], what: str, text: str
) -> None:
    """A time that has not been, or is none, fails though no age was asked for."""
    said = payload(evidence["good"].statement)["predicate"]
    changed = said | {"signed": text} if what == "signed" else said | {"run": said["run"] | {"finished": text}}
    findings = check_evidence(resigned(evidence["good"], keys["ours"], predicate=changed), demands(keys))

    assert failing(findings) == ["age"]
    assert exit_code(findings) == ExitCode.REFUSED


@pytest.mark.parametrize(
    ("name", "code"), [("bad", ExitCode.BLOCK), ("paired", ExitCode.BLOCK), ("tiny", ExitCode.INCONCLUSIVE)]
)
def test_only_a_pass_is_a_pass(evidence: dict[str, Evidence], keys: dict[str, Pair], name: str, code: ExitCode) -> None:
    """BLOCK exits 1; a smoke run that saw nothing exits 3, though its own job may go on."""
    findings = check_evidence(evidence[name], demands(keys))

    assert failing(findings) == ["result"]
    assert exit_code(findings) == code


@pytest.mark.parametrize(
    ("status", "word", "code"),
    [
        ("INCONCLUSIVE", "hold", ExitCode.INCONCLUSIVE),
        ("INCONCLUSIVE", "block", ExitCode.BLOCK),
        ("ERROR", "hold", ExitCode.ERROR),
        ("TAMPERED", "hold", ExitCode.TAMPERED),
    ],
)
def test_every_verdict_has_its_code(
    evidence: dict[str, Evidence], keys: dict[str, Pair], status: str, word: str, code: ExitCode
) -> None:
    """Evidence of any other verdict exits as the verdict does."""
    said = payload(evidence["good"].statement)["predicate"]
    verdict = said["verdict"] | {"status": status, "on_inconclusive": word}
    shown = resigned(evidence["good"], keys["ours"], predicate=said | {"verdict": verdict})

    assert exit_code(check_evidence(shown, demands(keys))) == code


def test_all_failures_are_told_and_the_worst_decides(evidence: dict[str, Evidence], keys: dict[str, Pair]) -> None:
    """Every failing check is there at once, with what was found, what was expected and what to do."""
    body = payload(evidence["bad"].statement)
    asked = demands(
        keys,
        subjects=[parse_subject("9" * 64)],
        policy_digest="8" * 64,
        max_age=timedelta(hours=1),
    )
    forged_too = evidence["bad"]._replace(statement=forged(evidence["bad"].statement, body | {"subject": []}))
    findings = check_evidence(evidence["bad"], asked)

    assert failing(findings) == ["subject", "policy", "age", "result"]
    assert all(finding.found and finding.expected and finding.advice for finding in findings if finding.code)
    assert exit_code(findings) == ExitCode.REFUSED
    worst = check_evidence(forged_too, asked)
    assert failing(worst) == ["signature", "summary", "subject", "policy", "age", "result"]
    assert exit_code(worst) == ExitCode.TAMPERED


@pytest.mark.parametrize("field", ["_type", "predicateType", "payloadType"])
def test_other_predicate_type_is_not_believed(evidence: dict[str, Evidence], keys: dict[str, Pair], field: str) -> None:
    """What the trusted key signed as something else is not taken for evidence, whatever it says."""
    body = payload(evidence["good"].statement)
    if field == "payloadType":
        first = sealed(body, keys["ours"], "text/plain")
    else:
        first = sealed(body | {field: PROVENANCE}, keys["ours"])
    shown = Evidence(first, sealed(summary(body, first.digest), keys["ours"]))
    findings = check_evidence(shown, demands(keys))

    assert failing(findings) == ["predicate"]
    assert exit_code(findings) == ExitCode.REFUSED


def test_other_tools_evidence_is_told(keys: dict[str, Pair], evidence: dict[str, Evidence]) -> None:
    """A statement of another kind is refused by its type; one of this type that lacks its fields is broken."""
    provenance = sealed({"_type": STATEMENT, "predicateType": PROVENANCE}, keys["ours"])
    hollow = sealed(payload(evidence["good"].statement) | {"predicate": {}}, keys["ours"])
    noise = sealed(["no", "object"], keys["ours"])

    for first, failed, code in (
        (provenance, ["predicate"], ExitCode.REFUSED),
        (noise, ["predicate"], ExitCode.REFUSED),
        (hollow, ["content"], ExitCode.ERROR),
    ):
        findings = check_evidence(evidence["good"]._replace(statement=first), demands(keys))
        assert failing(findings) == failed
        assert exit_code(findings) == code


@pytest.mark.parametrize("lines", [[0], [1, 0, 1], [], [1, 0]])
def test_file_has_both_lines_in_order(
    evidence: dict[str, Evidence], keys: dict[str, Pair], tmp_path: Path, lines: list[int]
) -> None:
    """A file that lacks a line is broken; one whose lines changed places is not the evidence that was asked for."""
    path = tmp_path / "evidence"
    written = [evidence["good"].statement.line, evidence["good"].summary.line]
    path.write_bytes(b"".join(written[at] for at in lines))

    if len(lines) == 2:
        assert failing(check_evidence(Evidence.read(path), demands(keys))) == ["predicate"]
    else:
        with pytest.raises(InvalidEvidenceError, match="expected the statement and the summary"):
            Evidence.read(path)


def test_what_is_written_is_read(evidence: dict[str, Evidence], tmp_path: Path) -> None:
    """A file gives the evidence that was written to it."""
    evidence["bad"].write(tmp_path / "evidence")

    assert Evidence.read(tmp_path / "evidence") == evidence["bad"]
    with pytest.raises(InvalidEvidenceError, match="does not exist"):
        Evidence.read(tmp_path / "nowhere")


def test_changed_runs_are_not_signed(judged_runs: Judged, own_runs: dict[str, Path], keys: dict[str, Pair]) -> None:
    """A run whose results were changed, or that is not complete, or a verdict of another run, gets no signature."""
    bad = RunFolder(own_runs["bad"])
    (own_runs["bad"] / "trials.parquet").write_bytes((own_runs["good"] / "trials.parquet").read_bytes())
    with pytest.raises(TamperedError, match=r"trials\.parquet was changed"):
        sign(bad, judged_runs["bad"][1], keys["ours"].signer, signed=SIGNED)
    with pytest.raises(TamperedError, match="the verdict is of run bad"):
        sign(RunFolder(own_runs["good"]), judged_runs["bad"][1], keys["ours"].signer, signed=SIGNED)
    (own_runs["tiny"] / "counters.json").unlink()
    with pytest.raises(InvalidRunError):
        sign(RunFolder(own_runs["tiny"]), judged_runs["tiny"][1], keys["ours"].signer, signed=SIGNED)


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1.5d", "1y", "", "999999d"])
def test_ages_are_whole(text: str) -> None:
    """Anything but a number with a unit is refused."""
    with pytest.raises(RefusedError, match=r"--old .*such as 30d"):
        parse_age("--old", text)
    assert (parse_age("--old", "90m"), parse_age("--old", "2w")) == (timedelta(minutes=90), timedelta(days=14))


@pytest.mark.parametrize("text", ["abc", "weights=abc", "1" * 63, "", f"{'1' * 64}="])
def test_subjects_are_whole_digests(text: str) -> None:
    """A shortened digest would be one that many things have."""
    with pytest.raises(RefusedError, match="64 hex digits"):
        parse_subject(text)
    assert parse_subject(f"profile=sha256:{'A' * 64}") == ("profile", "a" * 64)
