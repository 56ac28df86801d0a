"""How a server is reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from evalgate.backends.completion import PATHS, Api
from evalgate.errors import RefusedError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Address, tokenizer, bounds and key of one server."""

    base_url: str
    """Up to and with ``/v1``."""
    tokenizer: str
    """Folder, hub id or embedded model whose tokenizer the served model has."""
    api: Api = "completions"
    stream: bool = False
    """Whether answers come token by token, so that the time to the first is known."""
    concurrency: int = 8
    """Most requests at a time."""
    deadline_s: float = 600.0
    """Seconds for one question with all its tries."""
    key: str | None = field(default=None, repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise RefusedError(f"--base-url {self.base_url!r}: expected an address such as http://127.0.0.1:8000/v1")
        if self.api not in PATHS:
            raise RefusedError(f"--api {self.api!r} is not one that is known{nearest(self.api, list(PATHS))}")
        if self.concurrency < 1 or self.deadline_s <= 0:
            raise RefusedError(f"--concurrency {self.concurrency}, --deadline {self.deadline_s}: expected above 0")


def read_key(environment: str | None, file: Path | None, values: dict[str, str]) -> str | None:
    """The key from an environment variable or a file, never from a command line.  Raises RefusedError: not there."""
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip() or None
        except (OSError, UnicodeDecodeError) as error:
            raise RefusedError(f"--api-key-file {file} cannot be read ({error})") from error
    if environment is None:
        return values.get("OPENAI_API_KEY") or None
    if not values.get(environment):
        raise RefusedError(f"--api-key-env {environment}: the variable is not set")
    return values[environment]
