"""The published schemas are those of this version, and what is written keeps to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fixtures_judged import MakeRun, compared
from jsonschema import Draft202012Validator

from evalgate.cli.schema import NAMES
from evalgate.errors import ExitCode
from evalgate.gates.evidence_statement import statement
from evalgate.gates.policy import load_policy
from evalgate.records import Outcome

Evalgate = Callable[..., Any]


@pytest.fixture
def published(repository: Path) -> dict[str, Draft202012Validator]:
    """Each schema of ``docs/schemas``, ready to check by."""
    files = sorted((repository / "docs/schemas").glob("*.json"))
    return {file.stem: Draft202012Validator(json.loads(file.read_text(encoding="utf-8"))) for file in files}


@pytest.mark.parametrize("name", NAMES)
def test_the_published_schema_is_what_the_command_prints(evalgate: Evalgate, repository: Path, name: str) -> None:
    """``evalgate schema NAME > docs/schemas/NAME.json`` publishes it; both are valid schemas."""
    ended = evalgate("schema", name)
    text = (repository / f"docs/schemas/{name}.json").read_text(encoding="utf-8")

    assert ended.code == ExitCode.PASS
    assert ended.out == text, f"publish it again: evalgate schema {name} > docs/schemas/{name}.json"
    Draft202012Validator.check_schema(json.loads(text))


def test_every_schema_is_published(published: dict[str, Any]) -> None:
    """And nothing else."""
    assert tuple(published) == NAMES


@pytest.mark.parametrize("wrong", [0, 6, 30])
def test_verdicts_and_statements_keep_to_theirs(
    published: dict[str, Draft202012Validator], make_judged_run: MakeRun, wrong: int
) -> None:
    """PASS, INCONCLUSIVE and BLOCK, with a baseline; a field too many or too few is found."""
    policy = load_policy("demo")
    run = make_judged_run(policy, profile="state-int8", answers={("middle",): {Outcome.WRONG: range(wrong)}})
    verdict = compared(run, make_judged_run(policy, run_id="base"), policy)
    body = verdict.model_dump(mode="json")
    told = statement(run[0], verdict, run[1], {"forks": 1}, signed="2026-12-01T00:00:00Z", ledger=None)

    published["verdict"].validate(body)
    published["manifest"].validate(run[0].model_dump(mode="json"))
    published["statement"].validate(json.loads(json.dumps(told)))
    assert not published["verdict"].is_valid(body | {"more": 1})
    assert not published["verdict"].is_valid({key: value for key, value in body.items() if key != "status"})
    assert not published["statement"].is_valid(told | {"predicateType": "urn:other"})


@pytest.mark.parametrize("kind", ["policy", "profile", "suite"])
def test_released_documents_keep_to_theirs(
    published: dict[str, Draft202012Validator], repository: Path, kind: str
) -> None:
    """So that an editor which knows the schema marks no released document."""
    folder = {"policy": "gates/policies", "profile": "gates/profiles", "suite": "tasks/suites"}[kind]
    files = sorted((repository / folder).rglob("*.yaml"))

    assert files
    for file in files:
        published[kind].validate(yaml.safe_load(file.read_text(encoding="utf-8")))


def test_an_unknown_schema_is_refused(evalgate: Evalgate) -> None:
    """With the nearest that there is."""
    ended = evalgate("schema", "verdikt")

    assert ended.code == ExitCode.REFUSED
    assert "verdict" in ended.err
