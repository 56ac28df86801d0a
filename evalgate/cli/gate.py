"""`evalgate gate`: judge a run folder under a policy; the exit code is the verdict."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalgate.cli import console
from evalgate.cli.policy_ref import Chosen, PolicyRef, choose
from evalgate.errors import EvalgateError, ExitCode, RefusedError

if TYPE_CHECKING:
    from evalgate.gates.verdict import Verdict

Policy = Annotated[str, typer.Option(help="Policy: NAME (newest), NAME@1.0.0, or a YAML file.")]
Junit = Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")]
Markdown = Annotated[Path | None, typer.Option(help="Write Markdown to this file.")]
Github = Annotated[
    bool, typer.Option("--github", help="In a GitHub job: write its summary, its outputs and an annotation.")
]

SUMMARY = "GITHUB_STEP_SUMMARY"
OUTPUT = "GITHUB_OUTPUT"


def gate(
    run: console.Run,
    policy: Policy,
    policy_ref: PolicyRef = None,
    baseline: console.Baseline = None,
    junit: Junit = None,
    markdown: Markdown = None,
    github: Github = False,
    json: console.Json = False,
) -> None:
    """Judge RUN under a policy. The exit code is the verdict: 0 PASS, 1 BLOCK, 3 INCONCLUSIVE, 4 ERROR, 5 TAMPERED."""
    code = judge_and_tell(
        run,
        lambda: choose(policy, policy_ref),
        baseline=baseline,
        junit=junit,
        markdown=markdown,
        github=github,
        json=json,
    )
    raise typer.Exit(code)


def judge_and_tell(
    run: Path,
    chosen: Callable[[], Chosen],
    *,
    baseline: Path | None,
    junit: Path | None,
    markdown: Path | None,
    github: bool,
    json: bool,
) -> ExitCode:
    """Judge a run by the policy that ``chosen`` loads, tell what was asked for, and return the verdict's exit code."""
    if github and SUMMARY not in os.environ:
        raise RefusedError(f"--github writes to the file that {SUMMARY} names, and it is not set; leave --github out")
    for path in (junit, markdown):
        if path is not None:
            console.results_are_kept(path, run, baseline)
    with _told_to_files(junit, markdown, github=github):
        verdict, place = _judge(run, chosen(), baseline)
        _write(verdict, junit, markdown, github=github)
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


def _write(verdict: Verdict, junit: Path | None, markdown: Path | None, *, github: bool) -> None:
    from evalgate import disk
    from evalgate.gates import exports

    if junit is not None:
        disk.replace(junit, exports.junit(verdict).encode())
    if markdown is not None:
        disk.replace(markdown, exports.markdown(verdict).encode())
    if github:
        _tell_github(exports.markdown(verdict), str(verdict.status), int(verdict.exit_code), verdict.reason)


@contextlib.contextmanager
def _told_to_files(junit: Path | None, markdown: Path | None, *, github: bool) -> Iterator[None]:
    """Where no verdict came out, the files say so: one that is left from an earlier run must not stay green."""
    try:
        yield
    except EvalgateError as error:
        from evalgate import disk
        from evalgate.gates import no_verdict

        with contextlib.suppress(EvalgateError):
            if junit is not None:
                disk.replace(junit, no_verdict.junit(error).encode())
            if markdown is not None:
                disk.replace(markdown, no_verdict.markdown(error).encode())
            if github:
                status = no_verdict.status(error)
                _tell_github(no_verdict.markdown(error), status, int(error.exit_code), str(error))
        raise


def _tell_github(summary: str, status: str, code: int, reason: str) -> None:
    from evalgate import disk
    from evalgate.gates.clean_text import clean

    for variable, text in ((SUMMARY, summary), (OUTPUT, f"verdict={status}\nexit-code={code}\n")):
        if variable in os.environ:
            path = Path(os.environ[variable])
            with disk.told("append to", path), path.open("a", encoding="utf-8") as file:
                file.write(text)
    if code:
        # To standard error, which the job's log shows too: standard output may be JSON.
        level = "warning" if status == "INCONCLUSIVE" else "error"
        typer.echo(f"::{level} title=evalgate {status}::{clean(reason).replace('%', '%25')}", err=True)
