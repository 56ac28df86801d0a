"""The action and the pages for pipelines do what they say: their own scripts run as a runner would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

DECIDE = """
schema_version: 1
name: quick
version: 1.0.0
kind: release
suite: demo@1.0.0
looks: [20]
alpha: {pass: 0.05, block: {absolute: 0.02, paired: 0.02, guard: 0.01}}
cells:
  - {task: [single], length: [1024], band: [front, middle, back], min: 0.85}
validity: {floor: null}
baseline: {use: optional, break_margin: 0.15}
"""


class Ran(NamedTuple):
    """What a step of a job left behind."""

    code: int
    log: str
    summary: str
    outputs: dict[str, str]


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    """docs/ci.md"""
    return (repository / "docs/ci.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH whose `evalgate` is this checkout's, and whose `pip` installs nothing."""
    folder = tmp_path_factory.mktemp("tools")
    for name, line in {"evalgate": f'exec {sys.executable} -m evalgate "$@"', "pip": "exit 0"}.items():
        (folder / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / name).chmod(0o755)
    return folder


def run_step(script: str, folder: Path, tools: Path, **env: str) -> Ran:
    """One step as a GitHub runner runs it with ``shell: bash``."""
    files = {name: folder / name.lower() for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    for file in files.values():
        file.write_text("")
    path = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {name: str(file) for name, file in files.items()} | {"PATH": path} | env,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = files["GITHUB_OUTPUT"].read_text().splitlines()
    outputs = dict(line.split("=", 1) for line in lines)
    return Ran(done.returncode, done.stdout + done.stderr, files["GITHUB_STEP_SUMMARY"].read_text(), outputs)


def run_action(repository: Path, folder: Path, tools: Path, **inputs: str) -> Ran:
    """The action's own check step with its own environment, defaults filled in as GitHub does."""
    action = yaml.safe_load((repository / "action.yml").read_text(encoding="utf-8"))
    values = {name: str(spec.get("default", "")) for name, spec in action["inputs"].items()} | {
        name.replace("_", "-"): value for name, value in inputs.items()
    }
    (step,) = [step for step in action["runs"]["steps"] if step.get("id") == "check"]
    env = {
        name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: values[found[1]], text)
        for name, text in step["env"].items()
    }
    return run_step(step["run"], folder, tools, **env)


@pytest.mark.parametrize(
    ("model", "profile", "policy", "code", "verdict"),
    [
        ("builtin:hybrid", "full", "smoke", 0, "INCONCLUSIVE"),
        ("builtin:mostly-attention", "full", "quick.yaml", 0, "PASS"),
        ("builtin:hybrid", "state-rank-1", "quick.yaml", 1, "BLOCK"),
        ("builtin:hybrdi", "full", "smoke", 2, "REFUSED"),
        ("spoilt", "full", "smoke", 4, "ERROR"),
    ],
    ids=["warn", "pass", "block", "refused", "error"],
)
def test_the_action_ends_as_the_verdict(
    repository: Path, tmp_path: Path, tools: Path, model: str, profile: str, policy: str, code: int, verdict: str
) -> None:
    """Exit code, outputs, summary, JUnit and comment say the same; a mistake shows no traceback."""
    (tmp_path / "quick.yaml").write_text(DECIDE)
    (tmp_path / "spoilt").mkdir()
    (tmp_path / "spoilt/config.json").write_text("{")
    for left in ("run.junit.xml", "run.comment.md"):
        (tmp_path / left).write_text("PASS of an earlier run")
    suite = "smoke" if policy == "smoke" else "demo"
    ran = run_action(repository, tmp_path, tools, suite=suite, model=model, profile=profile, policy=policy, out="run")

    assert ran.code == code, ran.log
    assert "Traceback" not in ran.log
    assert ran.outputs == {
        "report": "run/report.html", "comment": "run.comment.md", "verdict": verdict, "exit-code": str(code)
    }  # fmt: skip
    assert f"## evalgate: {verdict}" in ran.summary
    told = (tmp_path / "run.comment.md").read_text()
    assert told.removeprefix("<!-- evalgate -->\n").startswith(f"## evalgate: {verdict}")
    assert f'value="{verdict}"' in (tmp_path / "run.junit.xml").read_text()
    assert ("::error title=evalgate" in ran.log) == (code != 0)
    if verdict in {"PASS", "BLOCK", "INCONCLUSIVE"}:
        assert verdict in (tmp_path / "run/report.html").read_text()


def test_an_input_is_never_run(repository: Path, tmp_path: Path, tools: Path) -> None:
    """Quotes, semicolons and substitutions in an input are text."""
    evil = "x'; touch owned; $(touch owned) `touch owned` \" && touch owned"
    ran = run_action(repository, tmp_path, tools, suite="smoke", model=evil, policy="smoke", arguments=evil)

    assert ran.code == 2
    assert not (tmp_path / "owned").exists()


def test_a_pipe_does_not_turn_red_into_green(page: str, tmp_path: Path, tools: Path) -> None:
    """The page's own line with `| tee`, on a model that is not there: red under bash, and the log is kept."""
    (line,) = re.findall(r"^  run: (evalgate check .* \| tee gate.log)$", page, re.MULTILINE)
    ran = run_step(line.replace("builtin:hybrid", "builtin:nobody"), tmp_path, tools)
    plain = subprocess.run(
        ["/bin/sh", "-c", f"PATH={tools}:$PATH; {line.replace('builtin:hybrid', 'builtin:nobody')}"],
        cwd=tmp_path,
        env=os.environ | {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary")},
        capture_output=True,
        check=False,
    )

    assert ran.code == 2
    assert plain.returncode == 0, "without pipefail the shell answers for tee"


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_gitlab_and_jenkins_steps_run(page: str, tmp_path: Path, tools: Path) -> None:
    """Their lines pass the smoke suite and leave the files that the pipeline collects."""
    (gitlab,) = [body for block in _blocks(page, "yaml") if "recall" in (body := yaml.safe_load(block))]
    (jenkins,) = _blocks(page, "groovy")
    (script,) = re.findall(r"sh '''#!/bin/bash\n(.*?)'''", jenkins, re.DOTALL)
    for name, lines in {"gitlab": "\n".join(gitlab["recall"]["script"]), "jenkins": script}.items():
        folder = tmp_path / name
        folder.mkdir()
        ran = run_step(lines, folder, tools)
        assert ran.code == 0, ran.log
        assert "<testsuite" in (folder / "gate.xml").read_text()
        assert (folder / "run/report.html").exists()
    assert gitlab["recall"]["allow_failure"] == {"exit_codes": [3]}
    assert jenkins.count("{") == jenkins.count("}")


def test_the_canary_runs_twice(page: str, tmp_path: Path, tools: Path) -> None:
    """Each night has seeds of its own and compares on them; a second night does not meet the first."""
    (script,) = [block for block in _blocks(page, "sh") if "canary" in block]
    for day in ("2026-01-01", "2026-01-02"):
        ran = run_step(script.replace("$(date -u +%F)", day), tmp_path, tools)
        assert ran.code == 0, ran.log
    listed = (tmp_path / "canary/latest.json").read_text()

    assert all(f"{day}-{name}" in listed for day in ("2026-01-01", "2026-01-02") for name in ("full", "int8"))


def test_what_is_skipped_says_so(page: str, tmp_path: Path, tools: Path) -> None:
    """The step of the page, in a repository where nothing of the model changed, and in one where something did."""
    (step,) = [body[0] for block in _blocks(page, "yaml") if "evaluate=" in block and (body := yaml.safe_load(block))]
    git = "git -c user.name=a -c user.email=a@b"
    setup = (
        f"git init -q -b main && {git} commit -q --allow-empty -m one && mkdir -p policies && echo 1 > policies/p.yaml"
    )
    assert run_step(f"{setup} && git add . && {git} commit -q -m two", tmp_path, tools).code == 0
    same = run_step(step["run"], tmp_path, tools, BASE="HEAD")
    changed = run_step(step["run"], tmp_path, tools, BASE="HEAD~1")

    assert (same.code, same.outputs) == (0, {"evaluate": "false"})
    assert "not evaluated" in same.summary
    assert (changed.code, changed.outputs, changed.summary) == (0, {"evaluate": "true"}, "")


def test_every_snippet_is_valid_yaml(page: str) -> None:
    """And the action is used with inputs that it has."""
    bodies: list[Any] = [yaml.safe_load(block) for block in _blocks(page, "yaml")]
    steps = bodies[0]["jobs"]["gate"]["steps"]
    (used,) = [step["with"] for step in steps if step.get("uses", "").startswith("evalgate/")]
    action = yaml.safe_load((Path(__file__).parent.parent / "action.yml").read_text(encoding="utf-8"))

    assert len(bodies) == 5
    assert used.keys() <= action["inputs"].keys()
    assert {name for name, spec in action["inputs"].items() if spec.get("required")} <= used.keys()
