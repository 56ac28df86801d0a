"""What docs/policies.md shows is true: its policies can decide, and its worked example runs as it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from evalgate.gates.plan import plan
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.power import power
from evalgate.records import Cell
from evalgate.tasks.suite import load_suite
from evalgate.versioned import parse, parse_yaml


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    """The page's text."""
    return (repository / "docs" / "policies.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Fenced code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_example_policies_can_decide(page: str) -> None:
    """Each is valid, asks only cells of its suite, and can pass with and without a baseline."""
    policies = [parse(Policy, parse_yaml(block, "example"), "example") for block in blocks(page, "yaml")]

    assert [policy.name for policy in policies] == ["chat", "document-qa", "code-search"]
    for policy in policies:
        assert set(policy.rules) <= set(load_suite(policy.suite).cells())
        assert all(row.passes[0.99] > 0.9 for row in power(policy) if row.tier == "primary")
        assert all(cell.bounds[-1].breaks_max for cell in plan(policy) if cell.primary)
    middle = policies[1].rules[Cell("multikey@8", 8192, "middle")]
    assert (middle.min, middle.tier) == (0.90, "primary")


def test_regulated_is_as_the_page_says(page: str) -> None:
    """Bar, error rate, looks, baseline and privacy of `regulated`, and the counts in its comments."""
    policy = load_policy("regulated@1.0.0")
    (row,) = power(policy)

    assert "bar 0.95, chance of a false PASS of 1% per cell, 200 to 1,600 seeds" in page
    assert (row.bar, policy.alpha.pass_, policy.looks) == (0.95, 0.01, [200, 400, 800, 1600])
    assert row.pass_at == (199, 392, 777, 1542)
    assert [at.breaks_max for at in plan(policy)[0].bounds] == [None, 0, 6, 18]
    assert (policy.baseline.use, policy.privacy.answers, policy.on_inconclusive) == ("required", "drop", "block")


def test_worked_example_runs(page: str, tmp_path: Path) -> None:
    """Every line of the example has the exit code that its comment says (0 without one), and prints what is shown."""
    example = page.partition("## A harsher profile")[2].partition("## Policies to start from")[0]
    lines = [line for block in blocks(example, "sh") for line in block.splitlines()]
    script, expected = [], []
    for line in lines:
        if line.startswith("evalgate "):
            command, _, comment = line.partition("    # exit ")
            script.append(f'{shlex.quote(sys.executable)} -m {command} 2>&1; echo "=> $?"')
            expected.append(int(comment or 0))
        else:
            script.append(line)
    done = subprocess.run(
        ["/bin/bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert [int(code) for code in re.findall(r"^=> (\d+)$", done.stdout, re.MULTILINE)] == expected, done.stdout
    assert sorted(set(expected)) == [0, 1, 2, 5]
    for shown in (line for block in blocks(example, "text") for line in block.splitlines()):
        assert shown in unescape(done.stdout), f"{shown}\nis not in\n{done.stdout}"
    assert done.stderr == ""
