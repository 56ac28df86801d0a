"""Options of models that another library loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from evalgate.runner import LoadOptions

HfArguments = Annotated[
    str | None,
    typer.Option(help="With --backend hf: NAME=VALUE,... for from_pretrained, such as attn_implementation."),
]
LmName = Annotated[
    str | None, typer.Option("--lm", help="With --backend lm-eval: its kind of model, such as hf or vllm.")
]
LmArguments = Annotated[
    str | None, typer.Option(help="With --backend lm-eval: NAME=VALUE,... for that model; pretrained is --model.")
]


def load_options(hf_args: str | None, lm: str | None, lm_args: str | None) -> LoadOptions:
    """The options together.  Raises RefusedError for arguments that are no NAME=VALUE."""
    from evalgate.runner import LoadOptions, read_arguments

    return LoadOptions(
        hf_args=read_arguments(hf_args, "--hf-args"), lm=lm, lm_args=read_arguments(lm_args, "--lm-args")
    )
