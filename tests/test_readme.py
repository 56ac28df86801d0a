"""What the README shows is true: its CI snippet runs, its tables are the program's, its commands run in order."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalgate.errors import ExitCode
from evalgate.gates.plan import seeds_needed
from evalgate.gates.policy import Policy, load_policy, template
from evalgate.versioned import parse, parse_yaml


@pytest.fixture(scope="module")
def readme(repository: Path) -> str:
    """The README's text."""
    return (repository / "README.md").read_text(encoding="utf-8")


def blocks(readme: str, language: str) -> list[str]:
    """Fenced code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", readme, re.DOTALL)


def test_ci_snippet_runs(readme: str, tmp_path: Path) -> None:
    """The workflow's own `evalgate check` line runs in bash, passes the job, and leaves JUnit, summary and report."""
    (snippet,) = blocks(readme, "yaml")
    steps = yaml.safe_load(snippet)["jobs"]["gate"]["steps"]
    step = next(step for step in steps if "evalgate check" in step.get("run", ""))
    command = step["run"].replace("evalgate check", f"{shlex.quote(sys.executable)} -m evalgate check")
    summary = tmp_path / "summary.md"
    done = subprocess.run(
        ["/bin/bash", "-eo", "pipefail", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"GITHUB_STEP_SUMMARY": str(summary)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert step["shell"] == "bash"
    assert len([line for line in snippet.splitlines() if line.strip()]) <= 11
    assert done.returncode == 0, done.stderr
    assert "no-regression-seen" in summary.read_text() or "INCONCLUSIVE" in summary.read_text()
    assert "<testsuite" in (tmp_path / "gate.xml").read_text()
    assert "INCONCLUSIVE" in (tmp_path / "run" / "report.html").read_text()


def test_exit_codes_are_those_of_the_program(readme: str) -> None:
    """Every code and name of the table is that of `ExitCode`, and none is left out."""
    rows = re.findall(r"^\| (\d+) \| ([A-Z]+) \|", readme, re.MULTILINE)

    assert {(int(code), name) for code, name in rows} == {(int(code), code.name) for code in ExitCode}


SMALLER = {"needle": "smoke", "serving-default": "smoke"}
"""What takes an hour in the README -> what takes seconds here; every other word is run as it stands."""
FEW = "2"
"""Seeds here, where the README asks for hundreds; the policy that it writes is told to judge as many."""
VERDICTS = {ExitCode.PASS, ExitCode.BLOCK, ExitCode.INCONCLUSIVE}


def commands(readme: str) -> list[list[str]]:
    """The words of every `evalgate` line of the README's shell blocks, in order."""
    lines = [line for block in blocks(readme, "sh") for line in block.splitlines() if line.startswith("evalgate ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def smaller(words: list[str]) -> list[str]:
    """The same command at a size that a test can run."""
    pairs = itertools.pairwise(["", *words])
    return [FEW if before == "--seeds" else SMALLER.get(word, word) for before, word in pairs]


def test_commands_run_in_order(
    readme: str, evalgate: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command works in an empty folder on what the ones before it left there, and writes what it names."""
    monkeypatch.chdir(tmp_path)
    every = commands(readme)
    assert {words[0] for words in every} == {"doctor", "run", "gate", "report", "suite", "policy", "profile"}
    for words in every:
        ended = evalgate(*smaller(words))
        assert ended.code in (VERDICTS if words[0] == "gate" else {ExitCode.PASS}), f"{words}: {ended}"
        for option in {"--out", "--junit"} & set(words):
            written = Path(words[words.index(option) + 1])
            assert written.exists(), words
            if words[0] == "policy":
                text = written.read_text(encoding="utf-8")
                written.write_text(text.replace("looks: [100]", f"looks: [{FEW}]"), encoding="utf-8")


def test_runs_have_the_seeds_that_their_policy_judges(readme: str) -> None:
    """A reader who copies the commands gets a verdict, not an error about too few seeds."""
    written = {"mine-policy.yaml": template("mine", "mine@1.0.0")}
    runs: dict[str, int] = {}
    judged = []
    for words in commands(readme):
        options = dict(itertools.pairwise(words))
        if words[0] == "run" and "--out" in words:
            runs[options["--out"]] = int(options["--seeds"])
        if words[0] == "gate":
            name = options["--policy"]
            policy = parse(Policy, parse_yaml(written[name], name), name) if name in written else load_policy(name)
            judged += [(runs[run], seeds_needed(policy)) for run in (words[1], options.get("--baseline")) if run]

    assert len(judged) >= 3
    assert all(seeds == needed for seeds, needed in judged), judged


def test_names_in_the_readme_exist(readme: str, repository: Path) -> None:
    """Embedded models, policies, suites and files that the README names are there."""
    for model in set(re.findall(r"builtin:([a-z-]+)", readme)):
        assert (repository / "evalgate" / "assets" / model / "config.json").is_file(), model
    for target in re.findall(r"\]\(([^)#]+)\)", readme):
        assert target.startswith("http") or (repository / target).exists(), target
