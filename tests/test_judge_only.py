"""The judge works where nothing but the judge is installed."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from evalgate.errors import ExitCode

# Import names of everything that only an engine, a backend, a data set or a signature needs.
ABSENT = (
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
    "datasets",
    "lm_eval",
    "pandas",
    "httpx",
    "tenacity",
    "securesystemslib",
    "cryptography",
)

_WITHOUT = """
import importlib.abc, sys


class Absent(importlib.abc.MetaPathFinder):
    # What a judge-only installation lacks is not there, whatever this environment holds.
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
from evalgate.cli import main
main()
"""


def judge_only(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that cannot import what a judge-only installation lacks."""
    command = [sys.executable, "-c", _WITHOUT.format(names=set(ABSENT)), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture
def run(kept_runs: dict[str, Path], tmp_path: Path) -> Path:
    """A run that blocks, to judge."""
    return Path(shutil.copytree(kept_runs["bad"], tmp_path / "run"))


def test_gate_and_report_need_no_engine(run: Path, tmp_path: Path) -> None:
    """Gate, report and runs do their whole work without an engine."""
    gated = judge_only("gate", run, "--policy", "demo", "--junit", "gate.xml", "--markdown", "gate.md", cwd=tmp_path)
    reported = judge_only("report", run, "--out", "report.html", cwd=tmp_path)
    listed = judge_only("runs", "list", ".", "--json", cwd=tmp_path)

    assert (gated.returncode, gated.stderr) == (ExitCode.BLOCK, "")
    assert (reported.returncode, reported.stderr) == (0, "")
    assert json.loads(listed.stdout)["runs"][0]["verdicts"] == {"demo@1.0.0": "BLOCK"}
    assert {path.name for path in tmp_path.iterdir()} >= {"gate.xml", "gate.md", "report.html"}


def test_documents_need_no_engine(tmp_path: Path) -> None:
    """Policies can be written and checked on a judge's machine."""
    assert judge_only("policy", "new", "mine", "--suite", "needle", "--out", "mine.yaml", cwd=tmp_path).returncode == 0
    assert judge_only("policy", "lint", "mine.yaml", cwd=tmp_path).returncode == ExitCode.PASS


def test_running_says_what_is_missing(tmp_path: Path) -> None:
    """Commands that need an engine say so in one line and exit 4."""
    ended = judge_only("run", "smoke", "--model", "builtin:hybrid", "--seeds", "1", "--out", "run", cwd=tmp_path)

    assert ended.returncode == ExitCode.ERROR
    assert re.match(r"error: this installation lacks \w+; .*pip install evalgate-longctx", ended.stderr)
    assert not (tmp_path / "run").exists()


def test_doctor_tells_a_judge_from_a_whole_installation(tmp_path: Path) -> None:
    """The doctor names each missing package, and goes on to what can still be checked."""
    ended = judge_only("doctor", "--json", cwd=tmp_path)

    checks = {check["name"]: check for check in json.loads(ended.stdout)["checks"]}
    assert ended.returncode == ExitCode.ERROR
    for package in ("torch", "transformers", "tokenizers", "safetensors", "triton"):
        assert f"No module named '{package}'" in checks[package]["detail"]
    assert checks["engine"]["status"] == "failed"
    assert [checks[kind]["status"] for kind in ("suites", "profiles", "policies")] == ["ok", "ok", "ok"]


def test_list_of_needs_is_the_documented_one(repository: Path) -> None:
    """What the document tells to install is what the project marks as the judge's, bound for bound."""
    document = (repository / "docs" / "judge-only.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"```requirements\n(.*?)```", document, re.DOTALL)
    project = (repository / "pyproject.toml").read_text(encoding="utf-8")
    marked = re.findall(r'^    "([^"]+)", # judge:', project, re.MULTILINE)

    assert sorted(listed.split()) == sorted(marked)
    assert set(marked) <= set(tomllib.loads(project)["project"]["dependencies"])


def test_blocked_names_are_the_other_dependencies(repository: Path) -> None:
    """Every dependency that is not the judge's is blocked here, so nothing slips in; numpy comes with scipy."""
    project = (repository / "pyproject.toml").read_text(encoding="utf-8")
    marked = set(re.findall(r'^    "([^"]+)", # judge:', project, re.MULTILINE))
    others = set(tomllib.loads(project)["project"]["dependencies"]) - marked
    names = {re.split(r"[<>=; ]", other)[0].replace("-", "_") for other in others}

    assert names - set(ABSENT) == {"numpy"}
    assert set(ABSENT) <= set(importlib.metadata.packages_distributions()), "a name that is not there blocks nothing"


def test_evidence_says_what_it_needs(run: Path, tmp_path: Path) -> None:
    """Where nothing can sign, evidence says in one line how to install what does; judging never needs it."""
    ended = judge_only("evidence", "keygen", "--out", tmp_path / "key", cwd=tmp_path)

    assert ended.returncode == ExitCode.ERROR
    assert ended.stderr.count("\n") == 1
    assert "pip install 'evalgate-longctx[sign]'" in ended.stderr
    assert judge_only("gate", run, "--policy", "demo", cwd=tmp_path).returncode == ExitCode.BLOCK
