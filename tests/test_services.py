"""The examples for services: each is a suite that every one of its tasks, lengths and bands can be asked of."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalgate.errors import ExitCode
from evalgate.tasks.haystack import Builder
from evalgate.tasks.suite import load_suite

Evalgate = Callable[..., Any]
EXAMPLES = ("chat", "document", "code")


@pytest.mark.parametrize("service", EXAMPLES)
def test_the_example_of_a_service_can_be_asked(
    service: str, repository: Path, tmp_path: Path, evalgate: Evalgate, builtin_tokenizer: Any
) -> None:
    """It lints, a policy can be begun from it, and a seed of it asks every cell."""
    page = (repository / "docs" / "services.md").read_text(encoding="utf-8")
    written = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (example,) = (text for text in written if f"name: {service}-service" in text)
    path = tmp_path / "suite.yaml"
    path.write_text(example, encoding="utf-8")
    suite = load_suite(str(path))
    builder = Builder(suite, builtin_tokenizer, "main")
    probes = [probe for stream in builder.streams for probe in builder.build(0, stream).probes]

    assert {probe.cell for probe in probes} == set(suite.cells())
    assert len(written) == len(EXAMPLES)
    assert evalgate("suite", "lint", path, "--model", "builtin:hybrid").code == ExitCode.PASS
    policy = evalgate("policy", "new", "own", "--suite", path, "--out", tmp_path / "policy.yaml")
    assert policy.code == ExitCode.PASS, policy.err
    assert evalgate("policy", "lint", tmp_path / "policy.yaml").code == ExitCode.PASS
