"""What the README shows is true: its CI snippet runs, its tables are the program's, its commands exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from evalgate.errors import ExitCode


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


def test_commands_exist(readme: str) -> None:
    """Every `evalgate` line of the README names a command whose help lists the options used."""
    lines = [line for block in blocks(readme, "sh") for line in block.splitlines() if line.startswith("evalgate ")]
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        command = words[:2] if words[0] in {"suite", "policy", "profile", "runs"} else words[:1]
        help_text = subprocess.run(
            [sys.executable, "-m", "evalgate", *command, "--help"], capture_output=True, text=True, check=True
        ).stdout
        for option in (word for word in words if word.startswith("--")):
            assert option in help_text, f"{line}: no {option}"


def test_names_in_the_readme_exist(readme: str, repository: Path) -> None:
    """Embedded models, policies, suites and files that the README names are there."""
    for model in set(re.findall(r"builtin:([a-z-]+)", readme)):
        assert (repository / "evalgate" / "assets" / model / "config.json").is_file(), model
    for target in re.findall(r"\]\(([^)#]+)\)", readme):
        assert target.startswith("http") or (repository / target).exists(), target
