"""How the command line is used: what is refused, what help says, and that no option is declared twice."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evalgate.cli import app
from evalgate.errors import ExitCode

Evalgate = Callable[..., Any]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gate"], "Missing argument 'run'; see `evalgate gate --help`"),
        (["gate", "x"], "--policy"),
        (["gate", "x", "--policy"], "--policy"),
        (["nonsense"], "nonsense"),
        (["gate", "--nonsense"], "--nonsense"),
        (["runs", "show"], "see `evalgate runs show --help`"),
        (["run", "smoke", "--model", "builtin:hybrid", "--seeds", "many"], "--seeds"),
        (["run", "smoke", "--model", "builtin:hybrid"], "--out is missing"),
        (["run", "smoke", "--model", ""], "the argument after --model is empty"),
        (["run", "smoke", "--model="], "--model is empty"),
        (["run", "smoke", "--model", " ", "--out", "run"], "--model ' '"),
        (["run", "", "--model", "builtin:hybrid"], "an argument is empty"),
        (["gate", "x", "--policy", "demo", "--baseline", ""], "the argument after --baseline is empty"),
    ],
    ids=str,
)
def test_bad_usage_is_refused(evalgate: Evalgate, arguments: list[str], words: str) -> None:
    """Bad arguments exit 2 and say how to ask; with --json as an object, like every other error."""
    ended = evalgate(*arguments)
    assert ended.code == ExitCode.REFUSED
    assert ended.err.startswith("error: ")
    assert words in ended.err
    assert "Traceback" not in ended.err
    as_json = evalgate(*arguments[:1], "--json", *arguments[1:])

    error = json.loads(as_json.out)["error"]
    assert error["exit_code"] == as_json.code == ExitCode.REFUSED
    assert f"error: {error['message']}\n" == as_json.err


@pytest.mark.parametrize("arguments", [[], ["runs"], ["suite"]])
def test_nothing_asked_shows_the_help(evalgate: Evalgate, arguments: list[str]) -> None:
    """A command that lacks its command shows what there is, and exits 2: nothing was done."""
    ended = evalgate(*arguments)

    assert (ended.code, ended.err) == (ExitCode.REFUSED, "")
    assert "Usage" in ended.out


def test_help_names_every_exit_code(evalgate: Evalgate) -> None:
    """The help has the exit codes, so that a pipeline's author need not look further."""
    told = " ".join(evalgate("--help").out.split())

    for code in ExitCode:
        assert re.search(rf"\b{int(code)} ", told)


def commands() -> Iterator[list[str]]:
    """Every command by its words."""
    for command in app.app.registered_commands:
        assert command.callback is not None
        yield [command.name or command.callback.__name__]
    for group in app.app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            yield [str(group.name), str(command.name)]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_has_help_and_json(evalgate: Evalgate, words: list[str]) -> None:
    """Each command explains itself and offers --json."""
    ended = evalgate(*words, "--help")

    assert ended.code == 0
    assert "--json" in ended.out


def test_no_option_is_declared_twice(repository: Path) -> None:
    """An option that several commands take is one declaration, so that it cannot come to mean two things."""
    told: Counter[str] = Counter()
    for path in (repository / "evalgate" / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"typer.Option", "typer.Argument"}:
                told.update(ast.literal_eval(word.value) for word in node.keywords if word.arg == "help")

    assert len(told) > 20
    assert [text for text, count in told.items() if count > 1] == []
