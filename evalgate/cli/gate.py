"""`evalgate gate`: judge a run folder under a policy; the exit code is the verdict."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from evalgate.cli import console
from evalgate.cli.policy_ref import Chosen, PolicyRef, choose
from evalgate.errors import EvalgateError, ExitCode, RefusedError

if TYPE_CHECKING:
    from evalgate.gates.verdict import Verdict

Policy = Annotated[str, typer.Option(help="Policy: NAME (newest), NAME@1.0.0, or a YAML file.")]
Junit = Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")]
Markdown = Annotated[Path | None, typer.Option(help="Write Markdown to this file.")]
Comment = Annotated[
    Path | None, typer.Option(help="Write Markdown for a comment on the change, at most 60,000 characters.")
]
Github = Annotated[
    bool, typer.Option("--github", help="In a GitHub job: write its summary, its outputs and an annotation.")
]


class Files(NamedTuple):
    """What a verdict is told to, beside the terminal."""

    junit: Path | None
    markdown: Path | None
    comment: Path | None
    github: bool


SUMMARY = "GITHUB_STEP_SUMMARY"
OUTPUT = "GITHUB_OUTPUT"


def gate(
    run: console.Run,
    policy: Policy,
    policy_ref: PolicyRef = None,
    baseline: console.Baseline = None,
    junit: Junit = None,
    markdown: Markdown = None,
    comment: Comment = None,
    github: Github = False,
    json: console.Json = False,
) -> None:
    """Judge RUN under a policy. The exit code is the verdict: 0 PASS, 1 BLOCK, 3 INCONCLUSIVE, 4 ERROR, 5 TAMPERED."""
    files = Files(junit, markdown, comment, github)
    code = judge_and_tell(run, lambda: choose(policy, policy_ref), files, baseline=baseline, json=json)
    raise typer.Exit(code)


def judge_and_tell(
    run: Path,
    chosen: Callable[[], Chosen],
    files: Files,
    *,
    baseline: Path | None,
    json: bool,
) -> ExitCode:
    """Judge a run by the policy that ``chosen`` loads, tell what was asked for, and return the verdict's exit code."""
    with told_to_files(files, run, baseline):
        verdict, place = _judge(run, chosen(), baseline)
        _write(verdict, files)
    if json:
        console.emit(verdict.model_dump(mode="json") | {"exit_code": int(verdict.exit_code), "file": str(place)})
    else:
        from evalgate.reports.terminal import summary

        console.say(summary(verdict), f"verdict: {place}")
    return verdict.exit_code


def _judge(run: Path, chosen: Chosen, baseline: Path | None) -> tuple[Verdict, Path]:
    from evalgate.gates.judge_run import gate_run, verdict_name
    from evalgate.store import RunFolder

    folder = RunFolder.open(run)
    other = None if baseline is None else RunFolder.open(baseline)
    verdict = gate_run(folder, chosen.policy, other, chosen.source)
    name = verdict_name(chosen.policy, None if other is None else other.manifest())
    return verdict, folder.path / "verdicts" / f"{name}.json"


def _write(verdict: Verdict, files: Files) -> None:
    from evalgate import disk
    from evalgate.gates.annotations import commands
    from evalgate.gates.junit_xml import junit
    from evalgate.gates.markdown import comment, summary

    written = {files.junit: junit, files.markdown: summary, files.comment: comment}
    for path, write in written.items():
        if path is not None:
            disk.replace(path, write(verdict).encode())
    if files.github:
        _tell_github(summary(verdict), str(verdict.status), int(verdict.exit_code), commands(verdict))


def _can_be_told(files: Files, run: Path, baseline: Path | None) -> None:
    """Refuse files that cannot be written, or that would overwrite results, before anything is written to them."""
    if files.github and SUMMARY not in os.environ:
        raise RefusedError(f"--github writes to the file that {SUMMARY} names, and it is not set; leave --github out")
    for path in (files.junit, files.markdown, files.comment):
        if path is not None:
            console.results_are_kept(path, run, baseline)


@contextlib.contextmanager
def told_to_files(files: Files, run: Path, baseline: Path | None) -> Iterator[None]:
    """Where no verdict came out, the files say so: one that is left from an earlier run must not stay green."""
    _can_be_told(files, run, baseline)
    try:
        yield
    except EvalgateError as error:
        from evalgate import disk
        from evalgate.gates import no_verdict
        from evalgate.gates.annotations import command

        with contextlib.suppress(EvalgateError):
            if files.junit is not None:
                disk.replace(files.junit, no_verdict.junit(error).encode())
            for path in (files.markdown, files.comment):
                if path is not None:
                    disk.replace(path, no_verdict.markdown(error).encode())
            if files.github:
                status = no_verdict.status(error)
                told = [command(status, f"evalgate {status}", str(error))]
                _tell_github(no_verdict.markdown(error), status, int(error.exit_code), told)
        raise


def _tell_github(summary: str, status: str, code: int, told: Sequence[str]) -> None:
    from evalgate import disk

    for variable, text in ((SUMMARY, summary), (OUTPUT, f"verdict={status}\nexit-code={code}\n")):
        if variable in os.environ:
            path = Path(os.environ[variable])
            with disk.told("append to", path), path.open("a", encoding="utf-8") as file:
                file.write(text)
    for line in told:
        # To standard error, which the job's log shows too: standard output may be JSON.
        typer.echo(line, err=True)
