"""Extensions by entry point: the example of the docs as a package, and packages that cannot serve."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from evalgate.store import RunFolder


def install(site: Path, files: dict[str, str], project: str) -> None:
    """Lay a package into ``site`` as an installer would."""
    body = tomllib.loads(project)["project"]
    info = site / f"{body['name'].replace('-', '_')}-{body['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {body['name']}\nVersion: {body['version']}\n")
    groups = body["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in names.items()) for group, names in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def evalgate(site: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run the command with what lies in ``site``."""
    command = [sys.executable, "-m", "evalgate", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(site)}
    )


@pytest.fixture(scope="module")
def vault(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, as it stands in the docs."""
    page = (repository / "docs" / "extending.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"`([\w./]+)`:\n\n```\w+\n(.*?)```", page, re.DOTALL))
    project = blocks.pop("pyproject.toml")
    site = tmp_path_factory.mktemp("site")
    install(site, blocks, project)
    assert blocks["vault.py"].count("\n") <= 45
    return site


def test_the_example_runs(vault: Path, tmp_path: Path) -> None:
    """Its suite is found by name, its family asked, its scorer judges, its haystack fills, its version is recorded."""
    out = tmp_path / "run"
    ended = evalgate(vault, "run", "vault", "--model", "builtin:hybrid", "--seeds", 2, "--out", out)
    assert ended.returncode == 0, ended.stderr
    folder = RunFolder.open(out)
    manifest, trials = folder.manifest(), folder.trials()

    assert manifest.packages == {"evalgate-vault": "1.2.0"}
    assert manifest.corpus is not None
    assert manifest.corpus.documents == 120
    assert {(trial.task, trial.scorer) for trial in trials} == {("password@6", "exactly")}
    assert len(trials) == 6
    # The model has never been taught passwords; that every answer was judged by its letter is what is shown.
    assert all(
        (trial.outcome == "correct") == (f'["{trial.answer.strip(" .")}"]' == trial.expected) for trial in trials
    )
    linted = evalgate(vault, "suite", "lint", "vault", "--model", "builtin:hybrid")
    assert linted.returncode == 0, linted.stderr
    (info,) = vault.glob("*.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evalgate-vault\nVersion: 1.3.0\n")
    again = evalgate(vault, "run", "vault", "--model", "builtin:hybrid", "--seeds", 2, "--out", out)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evalgate-vault\nVersion: 1.2.0\n")
    assert "another version of a package" in again.stderr


BROKEN = '[project]\nname = "broken"\nversion = "0"\n'


@pytest.mark.parametrize(
    ("entries", "asked", "words"),
    [
        ('families"]\ngone = "broken:nothing"', "gone@3", "families 'gone' of package broken cannot be loaded"),
        ('families"]\nlist = "broken:LIST"', "list@3", "expected a Family of that name"),
        ('families"]\nsingle = "broken:LIST"', "single", None),
        ('haystacks"]\nnone = "broken:raises"', "source", "gave no documents"),
        ('haystacks"]\nfew = "broken:few"', "source", "leaves 1 distinct lines"),
        ('haystacks"]\nother = "broken:few"', "source", "unknown haystack 'none'"),
    ],
    ids=["missing", "no-family", "ours-stay", "raises", "few", "unknown"],
)
def test_packages_that_cannot_serve_are_told(tmp_path: Path, entries: str, asked: str, words: str | None) -> None:
    """By name, without a traceback; a package cannot put its own in the place of ours."""
    code = "LIST = []\ndef raises():\n    raise KeyError('x')\ndef few():\n    return ['one line']\n"
    install(tmp_path / "site", {"broken.py": code}, f'{BROKEN}[project.entry-points."evalgate.{entries}\n')
    body = (Path(__file__).parents[1] / "tasks" / "suites" / "smoke" / "1.0.0.yaml").read_text()
    haystack = re.search(r"haystack: .*", body)
    assert haystack is not None
    name = "few" if "few =" in entries else "none"
    if asked == "source":
        given = f"haystack: {{source: package, name: {name}, language: en, data_class: public}}"
        body = body.replace(haystack[0], given)
    else:
        body = re.sub(r"tasks: .*", f'tasks: ["{asked}"]', body)
    suite = tmp_path / "suite.yaml"
    suite.write_text(body.replace("name: smoke", "name: own"))
    ended = evalgate(tmp_path / "site", "suite", "lint", suite, "--model", "builtin:hybrid")

    assert "Traceback" not in ended.stderr
    assert (words or "") in ended.stderr
    assert (ended.returncode == 0) == (words is None)
