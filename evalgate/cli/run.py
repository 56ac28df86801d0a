"""`evalgate run`: ask a suite of a model under a profile, or say what that would cost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from evalgate.cli import console
from evalgate.cli.loading import HfArguments, LmArguments, LmName, load_options
from evalgate.cli.plan import show_plan
from evalgate.cli.server import (
    Api,
    BaseUrl,
    Concurrency,
    Deadline,
    Headers,
    KeyEnvironment,
    KeyFile,
    ServedTokenizer,
    Streaming,
    server_options,
)
from evalgate.data_class import DataClass
from evalgate.errors import RefusedError

if TYPE_CHECKING:
    from evalgate.runner import Looks, Progress, RunRequest

Suite = Annotated[str, typer.Argument(help="Suite: NAME (newest), NAME@1.0.0, or a YAML file.", show_default=False)]
Model = Annotated[
    str,
    typer.Option(
        help="builtin:NAME (hybrid, hybrid-small-state, kda-only, mostly-attention), a checkpoint folder, or a hub id."
    ),
]
ProfileName = Annotated[str, typer.Option(help="Compression profile: NAME, NAME@1.0.0, or a YAML file.")]
BackendName = Annotated[str, typer.Option(help="What answers: native, hf, or openai (a server).")]
Dtype = Annotated[str, typer.Option(help="Compute dtype: fp32, bf16 or fp64.")]
Device = Annotated[
    str, typer.Option(help="Where the native engine computes: cpu, cuda, or auto, which says what it took.")
]
SeedSet = Annotated[str, typer.Option(help="Name of the seed set that haystacks are drawn from.")]
BackendLimit = Annotated[
    DataClass | None, typer.Option(help="Most confidential text that the backend may see.", show_default=False)
]
StoreLimit = Annotated[DataClass, typer.Option(help="Most confidential text whose answers may lie in the run folder.")]
Answers = Annotated[
    Literal["redact", "drop", "keep"] | None,
    typer.Option(help="Answers are written without secrets and personal data, not at all, or as they are."),
]
KeepDays = Annotated[int | None, typer.Option(help="Days after which `runs prune` removes the answers.")]
Redact = Annotated[
    list[str] | None, typer.Option(help="Regular expression of what answers must not keep; may be repeated.")
]

Thinking = Annotated[
    int | None,
    typer.Option(
        "--thinking-tokens",
        help="Most tokens of reasoning before an answer, inside the length; the suite's own number where not given.",
        show_default=False,
    ),
]


def run(
    suite: Suite,
    model: Model,
    profile: ProfileName = "full",
    backend: BackendName = "native",
    out: Annotated[Path | None, typer.Option(help="Run folder to write; a killed run goes on there.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Haystacks per stream: n of every cell; 100, or with --plan the policy's.")
    ] = None,
    seed_set: SeedSet = "main",
    dtype: Dtype = "fp32",
    device: Device = "cpu",
    plan: Annotated[bool, typer.Option("--plan", help="Only print tokens, time, memory and P(PASS).")] = False,
    policy: Annotated[str | None, typer.Option(help="With --plan: the policy whose chances are printed.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="With --plan: tokens per second to reckon with, instead of a short measurement."),
    ] = None,
    recall: Annotated[
        list[float] | None, typer.Option(help="With --policy: a true recall whose chances are told; may be repeated.")
    ] = None,
    backend_limit: BackendLimit = None,
    store_limit: StoreLimit = DataClass.INTERNAL,
    answers: Answers = None,
    keep_days: KeepDays = None,
    redact: Redact = None,
    thinking_tokens: Thinking = None,
    base_url: BaseUrl = None,
    tokenizer: ServedTokenizer = None,
    concurrency: Concurrency = 8,
    deadline: Deadline = 600.0,
    api_key_env: KeyEnvironment = None,
    api_key_file: KeyFile = None,
    header: Headers = None,
    api: Api = "completions",
    stream: Streaming = False,
    hf_args: HfArguments = None,
    lm: LmName = None,
    lm_args: LmArguments = None,
    json: console.Json = False,
) -> None:
    """Run SUITE against a model and keep every trial in a run folder."""
    from evalgate.runner import RunRequest

    if policy is not None and not plan:
        raise RefusedError("--policy goes with --plan; judge a finished run with `evalgate gate RUN --policy ...`")
    if not plan and (rate is not None or recall):
        raise RefusedError("--rate and --recall go with --plan")
    if seeds is None:
        seeds = 100 if policy is None else _seeds_of(policy)
    request = RunRequest(
        suite=suite,
        model=model,
        profile=profile,
        backend=backend,
        dtype=dtype,
        device=chosen_device(device),
        seeds=seeds,
        seed_set=seed_set,
        backend_limit=backend_limit,
        store_limit=store_limit,
        answers=answers,
        days=keep_days,
        redact=tuple(redact or ()),
        thinking_tokens=thinking_tokens,
        server=server_options(
            base_url, tokenizer, concurrency, deadline, api_key_env, api_key_file, header, api, stream
        ),
        load=load_options(hf_args, lm, lm_args),
    )
    if plan:
        show_plan(request, policy, rate=rate, recalls=recall, json=json)
        return
    if out is None:
        raise RefusedError("--out is missing: name the run folder to write, such as --out runs/first")
    body = execute(request, out)
    if json:
        console.emit(body)
    else:
        console.say(
            f"{out}: {body['trials']} trials, {body['correct']} right, {body['errors']} errors",
            f"next: evalgate gate {out} --policy POLICY",
        )


def chosen_device(asked: str) -> str:
    """The device to use; where the choice was left to us, it is told with its reason."""
    if asked != "auto":
        return asked
    from evalgate.kernels.ops import cuda_name, cuda_obstacle

    obstacle = cuda_obstacle()
    if obstacle:
        sys.stderr.write(f"device: cpu, because {obstacle.what}\n")
        return "cpu"
    sys.stderr.write(f"device: cuda, {cuda_name()}\n")
    return "cuda"


def _seeds_of(policy: str) -> int:
    from evalgate.gates.plan import seeds_needed
    from evalgate.gates.policy import load_policy

    return seeds_needed(load_policy(policy))


def execute(request: RunRequest, out: Path, title: str = "", looks: Looks | None = None) -> dict[str, object]:
    """Prepare and run ``request`` with progress on standard error; returns what the JSON output says.

    With ``looks`` only what is still undecided at a look is asked on.
    """
    from evalgate.records import Outcome
    from evalgate.runner import prepare, run_suite

    with progress(title + f"{request.suite} · {request.model} · {request.profile}") as report:
        folder = run_suite(prepare(request), out, report, looks)
    trials = folder.trials()
    manifest = folder.manifest()
    return {
        "run": str(out),
        "run_id": manifest.run_id,
        "trials": len(trials),
        "correct": sum(trial.outcome is Outcome.CORRECT for trial in trials),
        "errors": sum(trial.outcome is Outcome.ERROR for trial in trials),
        "wall_s": manifest.wall_s,
    }


@contextmanager
def progress(title: str, unit: str = "haystacks") -> Iterator[Callable[[Progress], None]]:
    """A progress line with rate and time left, on standard error and only on a terminal; else a line now and then.

    ``unit`` names what is counted.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    terminal = sys.stderr.isatty()
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    ]
    bar = Bar(*columns, console=console.open_console(sys.stderr), disable=not terminal, transient=True)
    task = bar.add_task(title, total=None, rate="")
    said = 0

    def report(state: Progress) -> None:
        nonlocal said
        rate = f"{state.tokens / state.seconds:,.0f} tok/s" if state.tokens and state.seconds else ""
        left = f"{state.seconds * (state.total - state.done) / state.fresh:,.0f} s left" if state.fresh else ""
        bar.update(task, completed=state.done, total=state.total, rate=rate)
        tenth = 10 * state.done // max(1, state.total)
        if not terminal and tenth > said:
            said = tenth
            told = ", ".join(part for part in (rate, left) if part) or "starting"
            with suppress(OSError):  # a run does not end because nobody reads how far it is
                sys.stderr.write(f"{title}: {state.done}/{state.total} {unit}, {told}\n")

    with bar:
        yield report
