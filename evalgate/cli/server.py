"""Options of a server that answers: where it is, whose tokenizer, how many requests at a time, and the key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from evalgate.errors import RefusedError

if TYPE_CHECKING:
    from evalgate.runner import ServerOptions

BaseUrl = Annotated[
    str | None,
    typer.Option(help="With --backend openai: the server's address, ending in /v1.", show_default=False),
]
ServedTokenizer = Annotated[
    str | None,
    typer.Option(help="With --backend openai: folder or hub id whose tokenizer is served.", show_default=False),
]
Concurrency = Annotated[int, typer.Option(min=1, help="Most requests to a server at a time.")]
Deadline = Annotated[float, typer.Option(help="Seconds for one question to a server, with all its tries.")]
Api = Annotated[str, typer.Option(help="What the server is asked by: completions, or chat with its own template.")]
Streaming = Annotated[bool, typer.Option("--stream", help="Take answers word by word, and time the first.")]
KeyEnvironment = Annotated[
    str | None, typer.Option(help="Environment variable that holds the key; OPENAI_API_KEY if set.", show_default=False)
]
KeyFile = Annotated[Path | None, typer.Option(help="File that holds the server's key.", show_default=False)]
Headers = Annotated[
    list[str] | None, typer.Option(help="Header for the server as NAME: VALUE; may be repeated.", show_default=False)
]


def server_options(
    base_url: str | None,
    tokenizer: str | None,
    concurrency: int,
    deadline: float,
    api_key_env: str | None,
    api_key_file: Path | None,
    header: list[str] | None,
    api: str,
    stream: bool,
) -> ServerOptions | None:
    """The options together; None where no address is given.  Raises RefusedError for what is incomplete."""
    if base_url is None:
        return None
    from evalgate.runner import ServerOptions, read_key

    if tokenizer is None:
        raise RefusedError("--tokenizer is missing: prompts are built in the tokens of the model that is served")
    return ServerOptions(
        base_url=base_url,
        tokenizer=tokenizer,
        concurrency=concurrency,
        deadline_s=deadline,
        key=read_key(api_key_env, api_key_file, dict(os.environ)),
        headers=dict(_header(each) for each in header or ()),
        api=cast("Any", api),  # checked there
        stream=stream,
    )


def _header(text: str) -> tuple[str, str]:
    name, found, value = text.partition(":")
    if not found or not name.strip() or any(c in text for c in "\r\n"):
        raise RefusedError(f"--header {name!r}: expected NAME: VALUE")
    return name.strip(), value.strip()
