"""`--policy-ref`: a change that edits the bar it is judged by is judged by the bar of the protected ref."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalgate.errors import ExitCode
from evalgate.gates.policy import library

Evalgate = Callable[..., Any]
FILE = "gate/policies/demo/1.0.0.yaml"
IDENTITY = {f"GIT_{who}_{what}": "tester@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(*words: str | Path) -> str:
    """Run git in the current folder, apart from the machine's own settings."""
    apart = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        [str(shutil.which("git")), *map(str, words)],
        env=os.environ | IDENTITY | apart,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def bad(kept_runs: dict[str, Path], tmp_path: Path) -> Path:
    """A run that the demo policy blocks."""
    return Path(shutil.copytree(kept_runs["bad"], tmp_path / "bad"))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose main has demo@1.0.0; on the branch in the working tree its bar and lock are edited."""
    root = tmp_path / "checkout"
    shutil.copytree(library().root / "demo", root / "gate" / "policies" / "demo")
    monkeypatch.chdir(root)
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "The bar")
    git("checkout", "-qb", "change")
    path = root / FILE
    path.write_text(path.read_text().replace("min: 0.90", "min: 0.50"))
    (path.parent / "lock.json").unlink()
    git("commit", "-qam", "Lower the bar")
    return root


@pytest.mark.parametrize("policy", [FILE, "demo", "demo@1.0.0"])
def test_change_is_judged_by_the_old_bar(evalgate: Evalgate, checkout: Path, bad: Path, policy: str) -> None:
    """Under the files of the change the run passes; under main it blocks, and the verdict says which commit that is."""
    assert evalgate("gate", bad, "--policy", FILE).code == ExitCode.PASS
    shutil.rmtree(bad / "verdicts")
    ended = evalgate("gate", bad, "--policy", policy, "--policy-ref", "main", "--json")

    assert ended.code == ExitCode.BLOCK
    said = json.loads(ended.out)
    assert said["policy_source"] == {"ref": "main", "commit": git("rev-parse", "main"), "path": FILE}
    page = checkout / "page.html"
    assert evalgate("report", bad, "--out", page).code == ExitCode.PASS
    assert git("rev-parse", "main") in page.read_text()


def test_check_runs_and_judges_by_the_ref(evalgate: Evalgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` plans, runs and judges by the policy of the ref, though the working tree has none."""
    shutil.copytree(library().root / "smoke", tmp_path / "policies" / "smoke")
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "main")
    git("add", "policies")
    git("commit", "-qm", "The bar")
    shutil.rmtree(tmp_path / "policies")
    words = ("check", "smoke", "--model", "builtin:hybrid", "--policy", "smoke", "--policy-ref", "main", "--out", "run")
    ended = evalgate(*words, "--json")

    assert ended.code == ExitCode.PASS, ended.err
    (verdict,) = (tmp_path / "run" / "verdicts").glob("*.json")
    assert json.loads(verdict.read_text())["policy_source"]["commit"] == git("rev-parse", "main")


def test_path_is_taken_from_the_current_folder(
    evalgate: Evalgate, checkout: Path, bad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path counts from where the command runs, an absolute one works too."""
    monkeypatch.chdir(checkout / "gate")

    assert evalgate("gate", bad, "--policy", "policies/demo/1.0.0.yaml", "--policy-ref", "main").code == ExitCode.BLOCK
    assert evalgate("gate", bad, "--policy", checkout / FILE, "--policy-ref", "main").code == ExitCode.BLOCK


def test_link_made_by_the_change_leads_nowhere(evalgate: Evalgate, checkout: Path, bad: Path) -> None:
    """A link that the change puts in the policy's place does not choose another file of the ref."""
    git("checkout", "-q", "main")
    lax = checkout / "lax" / "1.0.0.yaml"
    lax.parent.mkdir()
    lax.write_text((checkout / FILE).read_text().replace("min: 0.90", "min: 0.50"))
    git("add", "lax")
    git("commit", "-qm", "Another bar")
    (checkout / FILE).unlink()
    (checkout / FILE).symlink_to(lax)

    assert evalgate("gate", bad, "--policy", FILE, "--policy-ref", "main").code == ExitCode.BLOCK


def test_policy_of_the_ref_is_held_against_its_lock(evalgate: Evalgate, checkout: Path, bad: Path) -> None:
    """A released version that was edited on the protected ref itself is tampering there too."""
    lock = git("show", "main:gate/policies/demo/lock.json")
    (checkout / FILE).with_name("lock.json").write_text(lock)
    git("add", ".")
    git("commit", "-qm", "Put the lock back")

    assert evalgate("gate", bad, "--policy", "demo", "--policy-ref", "change").code == ExitCode.TAMPERED


@pytest.mark.parametrize(
    ("policy", "ref", "words"),
    [
        ("demo", "origin/main", "no such ref here; fetch it first with `git fetch origin main`"),
        ("demo", "--all", "no such ref here"),
        ("demo@2.0.0", "main", "has no policy demo@2.0.0: found gate/policies/demo/1.0.0.yaml"),
        ("deno", "main", "did you mean demo?"),
        ("gate/mine.yaml", "main", "gate/mine.yaml is not in main"),
        ("../outside.yaml", "main", "outside the repository"),
        ("gate/policies/demo/lock.json", "main", "unknown field"),
    ],
)
def test_what_the_ref_lacks_is_refused(
    evalgate: Evalgate, checkout: Path, bad: Path, policy: str, ref: str, words: str
) -> None:
    """A ref that is not there, a policy that it lacks: refused with the next step, and nothing is judged."""
    ended = evalgate("gate", bad, "--policy", policy, f"--policy-ref={ref}")

    assert (checkout / FILE).is_file()
    assert ended.code == ExitCode.REFUSED
    assert words in ended.err
    assert not (bad / "verdicts").exists()


@pytest.mark.usefixtures("checkout")
def test_ambiguous_ref_is_refused(evalgate: Evalgate, bad: Path) -> None:
    """A tag that has the name of the protected branch does not take its place unseen."""
    git("tag", "main", "change")

    assert "ambiguous" in evalgate("gate", bad, "--policy", FILE, "--policy-ref", "main").err
    assert evalgate("gate", bad, "--policy", FILE, "--policy-ref", "refs/heads/main").code == ExitCode.BLOCK


def test_shallow_clone_is_told_what_to_fetch(
    evalgate: Evalgate, checkout: Path, bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone of depth 1 lacks the ref: refused with a command that brings it, after which the old bar judges."""
    git("clone", "-q", "--depth=1", "--branch=change", f"file://{checkout}", tmp_path / "shallow")
    monkeypatch.chdir(tmp_path / "shallow")
    refused = evalgate("gate", bad, "--policy", FILE, "--policy-ref", "origin/main")
    assert refused.code == ExitCode.REFUSED
    assert "shallow" in refused.err
    remedy = refused.err.partition("`git ")[2].partition("`")[0]
    git(*remedy.split())

    assert evalgate("gate", bad, "--policy", FILE, "--policy-ref", "origin/main").code == ExitCode.BLOCK


def test_no_repository_and_no_git_are_refused(
    evalgate: Evalgate, bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside a repository, or without git, nothing is judged by a bar that could not be read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    outside = evalgate("gate", bad, "--policy", "demo", "--policy-ref", "main")
    monkeypatch.setenv("PATH", str(tmp_path))
    without = evalgate("gate", bad, "--policy", "demo", "--policy-ref", "main")

    assert (outside.code, without.code) == (ExitCode.REFUSED, ExitCode.REFUSED)
    assert "no git repository" in outside.err
    assert "needs git" in without.err
