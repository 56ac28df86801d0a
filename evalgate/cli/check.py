"""`evalgate check`: the CI step; run by the policy's looks, judge, report, and exit with the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evalgate.cli import console
from evalgate.cli.asking import under_policy
from evalgate.cli.gate import Comment, Files, Github, Junit, Markdown, Policy, judge_and_tell, told_to_files
from evalgate.cli.loading import HfArguments, LmArguments, LmName, load_options
from evalgate.cli.policy_ref import PolicyRef, choose
from evalgate.cli.report import write_report
from evalgate.cli.run import (
    Answers,
    BackendLimit,
    BackendName,
    Device,
    Dtype,
    KeepDays,
    Model,
    ProfileName,
    Redact,
    SeedSet,
    StoreLimit,
    Suite,
    Thinking,
    chosen_device,
    execute,
)
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


def check(
    suite: Suite,
    model: Model,
    policy: Policy,
    out: Annotated[Path, typer.Option(help="Run folder to write; the report goes to report.html in it.")],
    policy_ref: PolicyRef = None,
    profile: ProfileName = "full",
    backend: BackendName = "native",
    baseline: console.Baseline = None,
    seed_set: SeedSet = "main",
    dtype: Dtype = "fp32",
    device: Device = "cpu",
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
    junit: Junit = None,
    markdown: Markdown = None,
    comment: Comment = None,
    github: Github = False,
    json: console.Json = False,
) -> None:
    """Run SUITE look by look as the policy plans, judge it, write the report. The exit code is the verdict."""
    from evalgate.runner import Looks
    from evalgate.store import RunFolder

    files = Files(junit, markdown, comment, github)
    with told_to_files(files, out, baseline):
        chosen = choose(policy, policy_ref)
        rules = chosen.policy
        request = under_policy(
            rules,
            suite,
            model,
            profile=profile,
            backend=backend,
            dtype=dtype,
            device=chosen_device(device),
            seed_set=seed_set,
            backend_limit=backend_limit,
            store_limit=store_limit,
            answers=answers,
            keep_days=keep_days,
            redact=redact,
            thinking_tokens=thinking_tokens,
            server=server_options(
                base_url, tokenizer, concurrency, deadline, api_key_env, api_key_file, header, api, stream
            ),
            load=load_options(hf_args, lm, lm_args),
        )
        other = None if baseline is None else RunFolder.open(baseline)
        if other is not None:
            other.verify()
        execute(request, out, looks=Looks(rules, other) if len(rules.looks) > 1 else None)
    code = judge_and_tell(out, lambda: chosen, files, baseline=baseline, json=json)
    write_report(out, out / "report.html", baseline, rules.ref)
    if not json:
        console.say(f"report: {out / 'report.html'}")
    raise typer.Exit(code)
