"""The command line's frame: exit codes, error messages, JSON, and what a terminal is shown."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evalgate import __version__, errors
from evalgate.cli import app, console
from evalgate.errors import EvalgateError, ExitCode

Evalgate = Callable[..., Any]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, evalgate: Evalgate) -> Callable[..., Any]:
    """``failing(error)``: a command that raises ``error``."""

    def call(error: BaseException, *arguments: str) -> Any:
        def command(**_: object) -> None:
            raise error

        monkeypatch.setattr(app, "app", command)
        return evalgate(*arguments)

    return call


def error_classes() -> Iterator[type[EvalgateError]]:
    """Every class of the error tree."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, EvalgateError):
            yield kind


@pytest.mark.parametrize("kind", list(error_classes()))
def test_errors_end_with_their_code(failing: Callable[..., Any], kind: type[EvalgateError]) -> None:
    """Each error of ours ends the command with its class's code, one line on standard error, and no traceback."""
    ended = failing(kind("found a, expected b; do c"))

    assert ended == (kind.exit_code, "", "error: found a, expected b; do c\n")


def test_surprises_are_errors_and_never_verdicts(failing: Callable[..., Any]) -> None:
    """A fault of the program exits 4 with its traceback: Python's own 1 would read as BLOCK."""
    ended = failing(ZeroDivisionError("n is 0"))

    assert ended.code == ExitCode.ERROR
    assert "Traceback" in ended.err
    assert "this is a fault of the program" in ended.err


def test_missing_package_names_the_installation(failing: Callable[..., Any]) -> None:
    """A judge-only installation says so when it is asked to run."""
    ended = failing(ModuleNotFoundError("No module named 'torch'", name="torch"))

    assert ended.code == ExitCode.ERROR
    assert "this installation lacks torch" in ended.err
    assert "pip install evalgate-longctx" in ended.err


def test_interrupt_says_how_to_go_on(failing: Callable[..., Any]) -> None:
    """Ctrl-C exits 130 and says that the same command resumes."""
    ended = failing(KeyboardInterrupt())

    assert ended == (130, "", "error: interrupted; a run resumes with the same command\n")


def test_interrupt_reaches_a_real_command(tmp_path: Path) -> None:
    """SIGINT in the middle of a command is told in one line, without a traceback."""
    code = (
        "import os, signal, sys\n"
        "from evalgate.cli import doctor, main\n"
        "import evalgate.doctor\n"
        "evalgate.doctor.examine = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['evalgate', 'doctor']\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert ended.returncode == ExitCode.INTERRUPTED
    assert ended.stderr == "error: interrupted; a run resumes with the same command\n"


def test_json_errors_are_objects(failing: Callable[..., Any]) -> None:
    """With --json an error is an object on standard output, beside the line on standard error."""
    ended = failing(errors.TamperedError("changed"), "gate", "--json")

    assert json.loads(ended.out) == {"error": {"type": "TamperedError", "message": "changed", "exit_code": 5}}
    assert ended.err == "error: changed\n"


def test_version_is_printed(evalgate: Evalgate) -> None:
    """--version prints the version and is done."""
    assert evalgate("--version") == (0, f"evalgate {__version__}\n", "")


def test_module_is_the_command() -> None:
    """``python -m evalgate`` is the same command."""
    ended = subprocess.run([sys.executable, "-m", "evalgate", "--version"], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (0, f"evalgate {__version__}\n")


def test_control_characters_stay_out_of_the_terminal(failing: Callable[..., Any]) -> None:
    """What a file or a model wrote cannot colour, clear or reverse the terminal through an error message."""
    ended = failing(errors.InvalidRunError("bad \x1b[2J name \u202e\r\x00 end\nnext"))

    assert ended.err == "error: bad \ufffd[2J name \ufffd\ufffd\ufffd end\nnext\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [("gate {good} --policy demo", ExitCode.PASS), ("gate {bad} --policy demo --json", ExitCode.BLOCK)],
)
def test_closed_pipe_keeps_the_exit_code(
    kept_runs: dict[str, Path], tmp_path: Path, words: str, code: ExitCode
) -> None:
    """A reader that closes the pipe early changes neither the verdict's code nor prints a traceback."""
    runs = {name: shutil.copytree(path, tmp_path / name) for name, path in kept_runs.items()}
    assert piped(words.format(**runs), "2>err | true", tmp_path) == code
    assert (tmp_path / "err").read_text() == ""


def test_closed_pipe_of_the_progress_ends_no_run(tmp_path: Path) -> None:
    """A run whose progress nobody reads any more is finished all the same."""
    words = "run smoke --model builtin:hybrid --seeds 2 --out run"

    assert piped(words, "2>&1 >out | true", tmp_path) == ExitCode.PASS
    assert "18 trials" in (tmp_path / "out").read_text()


def piped(words: str, redirection: str, folder: Path) -> int:
    """Exit code of a command whose output goes to a reader that reads nothing."""
    line = f"{sys.executable} -m evalgate {words} {redirection}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", line], check=False, cwd=folder).returncode  # noqa: S607 - the system's


def test_existing_files_are_kept(tmp_path: Path) -> None:
    """A file that is there is refused as the place of a new document."""
    with pytest.raises(errors.RefusedError, match="is there already"):
        console.existing_file_is_kept(tmp_path)


def command(*words: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    line = [sys.executable, "-m", "evalgate", *words]
    return subprocess.run(line, text=True, check=False, stderr=subprocess.PIPE, **given)


def test_output_that_cannot_be_written_is_no_block() -> None:
    """A full standard output is ERROR, not 1, and says so without a traceback."""
    with Path("/dev/full").open("w") as full:
        done = command("policy", "lint", "demo", "--json", stdout=full)

    assert done.returncode == ExitCode.ERROR
    assert "standard output" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("suite", "lint", "a" * 300 + ".yaml"), ExitCode.REFUSED),
        (("suite", "lint", "a" * 300), ExitCode.REFUSED),
        (("suite", "lint", "smoke@"), ExitCode.REFUSED),
        (("gate", "a" * 300, "--policy", "smoke"), ExitCode.ERROR),
        (("runs", "list", "a" * 300), ExitCode.ERROR),
    ],
    ids=str,
)
def test_names_that_no_disk_holds(words: tuple[str, ...], code: ExitCode) -> None:
    """A name too long or half given is told without a traceback."""
    done = command(*words, stdout=subprocess.DEVNULL)

    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 1000


def test_yaml_nested_without_end_is_refused(tmp_path: Path) -> None:
    """Thousands of brackets are no document."""
    path = tmp_path / "deep.yaml"
    path.write_text("[" * 5000, encoding="utf-8")
    done = command("suite", "lint", str(path), stdout=subprocess.DEVNULL)

    assert done.returncode == ExitCode.REFUSED
    assert "Traceback" not in done.stderr


def test_check_refuses_a_policy_of_another_suite(tmp_path: Path) -> None:
    """Before the first token: nothing is run, nothing is written."""
    words = ("check", "smoke", "--model", "builtin:hybrid", "--policy", "serving-default")
    done = command(*words, "--out", str(tmp_path / "run"), stdout=subprocess.DEVNULL)

    assert done.returncode == ExitCode.REFUSED
    assert "needle@1.0.0" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["trials.parquet", "manifest.json", "verdicts/x.json"])
def test_outputs_never_replace_results(name: str, tmp_path: Path) -> None:
    """A report or JUnit file that would overwrite a run's own file is refused."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "manifest.json").write_text("kept", encoding="utf-8")
    for words in (
        ("report", "--out"),
        ("gate", "--policy", "smoke", "--junit"),
        ("gate", "--policy", "smoke", "--markdown"),
    ):
        done = command(words[0], str(run), *words[1:], str(run / name), stdout=subprocess.DEVNULL)
        assert done.returncode == ExitCode.REFUSED
        assert "part of run" in done.stderr
    assert (run / "manifest.json").read_text(encoding="utf-8") == "kept"


def test_plan_costs_the_seeds_that_the_policy_judges(evalgate: Evalgate) -> None:
    """With a policy and no --seeds, the plan is of the policy's run."""
    words = ("run", "demo", "--model", "builtin:hybrid", "--plan", "--policy", "demo", "--json")
    plan = json.loads(evalgate(*words).out)
    fewer = json.loads(evalgate(*words, "--seeds", "7").out)

    assert (plan["seeds"], fewer["seeds"]) == (100, 7)
    assert plan["power"][0]["n"] == 100
    assert plan["seconds"] == pytest.approx(plan["tokens"] / plan["speed"]["tokens_per_second"])
