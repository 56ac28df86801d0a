"""Versions of documents: a weaker one is locked only with an approval on evidence, and its verdicts say so."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fixtures_command import keep_run
from fixtures_judged import MakeRun

from evalgate.errors import ExitCode
from evalgate.gates import policy as policies
from evalgate.gates import profile as profiles
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.profile import Profile, load_profile
from evalgate.gates.rules import judge
from evalgate.tasks.suite import LIBRARY, Suite
from evalgate.versioned import Evidence

Evalgate = Callable[..., Any]


@pytest.mark.parametrize(
    ("kind", "old", "new", "weaker", "words"),
    [
        ("policy", "serving-default@1.0.0", "serving-default@1.1.0", "looser", "seeds at the first look: 400 -> 100"),
        ("profile", "full", "state-int8", "harsher", "state.dtype: fp32 -> int8"),
        ("suite", "needle", "smoke", "easier", "lengths: no longer asked: 2048, 4096, 8192"),
    ],
)
def test_diff_says_it_and_fails_when_asked_to(
    evalgate: Evalgate, kind: str, old: str, new: str, weaker: str, words: str
) -> None:
    """`diff` is news and exits 0; with --fail-on-loosening it is a check and exits 1, but not the other way round."""
    told = evalgate(kind, "diff", old, new)
    body = json.loads(evalgate(kind, "diff", old, new, "--json").out)

    assert told.code == ExitCode.PASS
    assert f"{weaker}: {words}" in told.out
    assert body[weaker] is True
    assert {"change": weaker, "words": words} in body["changes"]
    assert evalgate(kind, "diff", old, new, "--fail-on-loosening").code == ExitCode.BLOCK
    assert evalgate(kind, "diff", new, new, "--fail-on-loosening").code == ExitCode.PASS


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A folder of one's own with the released policy demo@1.0.0."""
    return Path(shutil.copytree(policies.library().root / "demo", tmp_path / "policies" / "demo"))


def next_version(old: Path, new: str, *edits: tuple[str, str]) -> Path:
    """The next version beside ``old``: a copy with other words."""
    text = old.read_text().replace(f"version: {old.stem}", f"version: {new}", 1)
    for before, after in edits:
        assert before in text
        text = text.replace(before, after)
    path = old.with_name(f"{new}.yaml")
    path.write_text(text)
    return path


@pytest.fixture
def judged(kept_runs: dict[str, Path], evalgate: Evalgate, tmp_path: Path) -> Path:
    """A run that policy demo@1.0.0 blocks in the middle, with its verdict."""
    run = Path(shutil.copytree(kept_runs["bad"], tmp_path / "bad"))
    assert evalgate("gate", run, "--policy", "demo@1.0.0").code == ExitCode.BLOCK
    return run


WHO = ("--reason", "the middle is rarely asked", "--approver", "Ada")


def test_looser_version_needs_an_approval(evalgate: Evalgate, demo: Path, judged: Path) -> None:
    """Refused with what is looser and what is missing; approved with evidence, then locked, loaded and visible."""
    path = next_version(demo / "1.0.0.yaml", "1.1.0", ("min: 0.90", "min: 0.50"))
    refused = evalgate("policy", "lock", path)

    assert refused.code == ExitCode.REFUSED
    assert "looser than demo@1.0.0: bar of every cell: 0.9 -> 0.5. It lacks approver, evidence" in refused.err
    assert "1.1.0" not in (demo / "lock.json").read_text()
    approved = evalgate("policy", "approve", path, *WHO, "--evidence", judged)
    assert approved.code == ExitCode.PASS, approved.err
    assert "approved by Ada on run bad (demo@1.0.0: BLOCK)" in approved.out
    document = policies.library().load(Policy, str(path))
    assert document.evidence is not None
    assert (document.approver, document.evidence.run) == ("Ada", "bad")
    assert document.evidence.changes == ["bar of every cell: 0.9 -> 0.5"]
    assert json.loads((demo / "lock.json").read_text())["1.1.0"] == document.digest
    assert "# at 100 seeds a cell passes" in path.read_text(), "comments stay"
    again = evalgate("policy", "approve", path, *WHO, "--evidence", judged)
    assert "locked already" in again.err


def test_verdict_under_an_approved_loosening_says_so(evalgate: Evalgate, demo: Path, judged: Path) -> None:
    """Who loosened what, why and on which run stays in every verdict, in its JSON, Markdown and report."""
    path = next_version(demo / "1.0.0.yaml", "1.1.0", ("min: 0.90", "min: 0.50"))
    evalgate("policy", "approve", path, *WHO, "--evidence", judged)
    summary, page = judged.parent / "summary.md", judged.parent / "page.html"
    ended = evalgate("gate", judged, "--policy", path, "--markdown", summary, "--json")
    evalgate("report", judged, "--policy", "demo@1.1.0", "--out", page)

    notice = next(one for one in json.loads(ended.out)["warnings"] if one["code"] == "policy-loosened")
    for words in ("bar of every cell: 0.9 -> 0.5", "Ada", "the middle is rarely asked", "run bad"):
        assert words in notice["detail"]
        assert words in unescape(summary.read_text())
        assert words in unescape(page.read_text())


def test_approval_holds_for_what_was_approved(evalgate: Evalgate, demo: Path, judged: Path) -> None:
    """A bar that is lowered further after its approval is tampering once locked, and refused before."""
    path = next_version(demo / "1.0.0.yaml", "1.1.0", ("min: 0.90", "min: 0.80"))
    evalgate("policy", "approve", path, *WHO, "--evidence", judged)
    path.write_text(path.read_text().replace("min: 0.80", "min: 0.10"))
    assert evalgate("policy", "lock", path).code == ExitCode.TAMPERED
    (demo / "lock.json").write_text(json.dumps({"1.0.0": load_policy("demo@1.0.0").digest}))
    refused = evalgate("policy", "lock", path)

    assert refused.code == ExitCode.REFUSED
    assert "approved for others" in refused.err


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (("--reason", " ", "--approver", "Ada"), "--reason is empty"),
        (("--reason", "x", "--approver", ""), "--approver is empty"),
    ],
)
def test_empty_approvals_are_refused(
    evalgate: Evalgate, demo: Path, judged: Path, spoil: tuple[str, ...], words: str
) -> None:
    """Nobody and nothing is no approver and no reason."""
    path = next_version(demo / "1.0.0.yaml", "1.1.0", ("min: 0.90", "min: 0.80"))
    refused = evalgate("policy", "approve", path, *spoil, "--evidence", judged)

    assert refused.code == ExitCode.REFUSED
    assert words in refused.err


def test_evidence_must_speak_of_the_bar(
    evalgate: Evalgate, demo: Path, judged: Path, kept_runs: dict[str, Path]
) -> None:
    """A run that was never judged under the old bar shows nothing; one that was changed is tampering."""
    path = next_version(demo / "1.0.0.yaml", "1.1.0", ("min: 0.90", "min: 0.80"))
    before = path.read_text()
    never = evalgate("policy", "approve", path, *WHO, "--evidence", kept_runs["good"])
    (judged / "counters.json").write_text('{"prefilled_tokens": 2}')
    changed = evalgate("policy", "approve", path, *WHO, "--evidence", judged)

    assert (never.code, changed.code) == (ExitCode.REFUSED, ExitCode.TAMPERED)
    assert "expected a verdict (no ERROR) under demo@1.0.0" in never.err
    assert path.read_text() == before


def test_tighter_version_needs_no_approval(evalgate: Evalgate, demo: Path, judged: Path) -> None:
    """A higher bar is locked as it is, and there is nothing to approve in it."""
    path = next_version(demo / "1.0.0.yaml", "1.0.1", ("min: 0.90", "min: 0.91"))

    assert "is not looser" in evalgate("policy", "approve", path, *WHO, "--evidence", judged).err
    assert evalgate("policy", "lock", path).code == ExitCode.PASS
    assert evalgate("policy", "lock", path).code == ExitCode.PASS, "again changes nothing"
    below = next_version(demo / "1.0.0.yaml", "0.9.0", ("min: 0.90", "min: 0.80"))
    assert "looser than demo@1.0.0" in evalgate("policy", "lock", below).err, "a lower number is no way around"


def test_documents_are_locked_in_their_place(evalgate: Evalgate, demo: Path) -> None:
    """A file elsewhere has no versions beside it, so it is sent to its place; a lost version is asked back."""
    path = next_version(demo / "1.0.0.yaml", "1.0.1")
    elsewhere = Path(shutil.copy(path, demo / "mine.yaml"))

    assert "move it to demo/1.0.1.yaml" in evalgate("policy", "lock", elsewhere).err
    (demo / "1.0.0.yaml").unlink()
    assert "put it back" in evalgate("policy", "lock", path).err


def test_harsher_profile_needs_a_run_of_its_settings(
    evalgate: Evalgate, tmp_path: Path, kept_runs: dict[str, Path], judged: Path
) -> None:
    """A harsher profile is approved on a run that ran exactly it, and on no other."""
    folder = Path(shutil.copytree(profiles.library().root / "full", tmp_path / "profiles" / "full"))
    settings = re.search(r"(?m)^state: .*$", (profiles.library().root / "state-int8" / "1.0.0.yaml").read_text())
    before = re.search(r"(?m)^state: .*$", (folder / "1.0.0.yaml").read_text())
    assert settings is not None
    assert before is not None
    path = next_version(folder / "1.0.0.yaml", "1.1.0", (before[0], settings[0]))
    good = Path(shutil.copytree(kept_runs["good"], tmp_path / "good"))
    evalgate("gate", good, "--policy", "demo")

    assert "harsher than full@1.0.0: state.dtype: fp32 -> int8" in evalgate("profile", "lock", path).err
    assert "exactly the settings" in evalgate("profile", "approve", path, *WHO, "--evidence", good).err
    assert evalgate("profile", "approve", path, *WHO, "--evidence", judged).code == ExitCode.PASS
    assert profiles.library().load(Profile, str(path)).approver == "Ada"


def test_easier_suite_needs_an_approval(evalgate: Evalgate, tmp_path: Path) -> None:
    """Suites are governed as policies and profiles are."""
    folder = Path(shutil.copytree(LIBRARY.root / "needle", tmp_path / "suites" / "needle"))
    path = next_version(folder / "1.0.0.yaml", "1.1.0", ("[1024, 2048, 4096, 8192]", "[1024]"))

    assert "easier than needle@1.0.0" in evalgate("suite", "lock", path).err
    assert LIBRARY.load(Suite, str(path)).evidence is None


def test_released_documents_pass_their_own_rule(evalgate: Evalgate) -> None:
    """Locking what evalgate ships changes nothing: every version is locked already."""
    for kind, root in (
        ("policy", policies.library().root),
        ("profile", profiles.library().root),
        ("suite", LIBRARY.root),
    ):
        for path in sorted(root.glob("*/*.yaml")):
            before = path.with_name("lock.json").read_text()
            assert evalgate(kind, "lock", path).code == ExitCode.PASS
            assert path.with_name("lock.json").read_text() == before


def test_the_log_ties_changes_to_runs_and_verdicts(
    evalgate: Evalgate, make_judged_run: MakeRun, repository: Path, tmp_path: Path
) -> None:
    """Each version with what changed, who approved it, and the runs that ran it, however they were judged."""
    folder = tmp_path / "profiles" / "chat"
    folder.mkdir(parents=True)
    base = (repository / "gates/profiles/full/1.0.0.yaml").read_text().replace("name: full", "name: chat")
    (folder / "1.0.0.yaml").write_text(base)
    (folder / "1.1.0.yaml").write_text(
        base.replace("version: 1.0.0", "version: 1.1.0").replace("state: {dtype: fp32", "state: {dtype: bf16")
    )
    policy = load_policy("demo")
    manifest, trials = make_judged_run(policy, profile="full")
    ran = load_profile(str(folder / "1.1.0.yaml"))
    effective = {**manifest.engine.effective_profile, **ran.model_dump(mode="json", include={"state"})}
    manifest = manifest.model_copy(
        update={
            "profile": ran.id,
            "profile_body": ran.model_dump(mode="json", by_alias=True, exclude_unset=True),
            "engine": manifest.engine.model_copy(update={"effective_profile": effective}),
        }
    )
    run = keep_run(tmp_path / "runs" / "int8", manifest, trials)
    evalgate("gate", run, "--policy", "demo")
    first, second = json.loads(evalgate("profile", "log", folder, "--runs", tmp_path / "runs", "--json").out)[
        "versions"
    ]
    told = evalgate("profile", "log", folder, "--runs", tmp_path / "runs").out

    assert (first["profile"], first["changes"], first["runs"]) == ("chat@1.0.0", [], [])
    assert second["changes"] == ["harsher: state.dtype: fp32 -> bf16"]
    assert [one["run"] for one in second["runs"]] == [str(run)]
    assert second["runs"][0]["verdicts"].startswith("demo@1.0.0 ")
    assert "harsher: state.dtype: fp32 -> bf16" in told
    assert evalgate("profile", "log", "no-such").code == ExitCode.REFUSED
    assert evalgate("profile", "log", tmp_path).code == ExitCode.REFUSED


def test_a_verdict_on_a_harsher_profile_says_who_stands_for_it(make_judged_run: MakeRun) -> None:
    """The approval of a harsher profile stays in every verdict on a run of it."""
    shown = Evidence(run="r1", verdict="demo@1.0.0", status="PASS", digest="0" * 64, changes=["kv.keep: 1.0 -> 0.75"])
    harsher = load_profile("full").model_copy(update={"approver": "Ada", "reason": "less cache", "evidence": shown})
    policy = load_policy("demo")
    manifest, trials = make_judged_run(policy)
    run = manifest.model_copy(update={"profile": harsher.id}), trials
    (notice,) = [n for n in judge(*run, policy, profile=harsher).warnings if n.code == "profile-harsher"]

    for words in ("full@1.0.0 is weaker", "kv.keep: 1.0 -> 0.75", "approved by Ada: less cache", "on run r1", "PASS"):
        assert words in notice.detail
    plain = judge(manifest, trials, policy, profile=load_profile("full")).warnings
    assert not [n for n in plain if n.code == "profile-harsher"]
