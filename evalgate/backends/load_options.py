"""How another library loads a model: arguments that go to it as they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from evalgate.errors import RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Arguments of transformers' ``from_pretrained``, and which of lm-eval's models with which arguments."""

    hf_args: dict[str, str] = field(default_factory=dict)
    lm: str | None = None
    """lm-eval's name of a kind of model: ``hf``, ``vllm`` ..."""
    lm_args: dict[str, str] = field(default_factory=dict)


def read_arguments(text: str | None, option: str) -> dict[str, str]:
    """``a=1,b=x`` as a mapping.  Raises RefusedError for anything else."""
    found: dict[str, str] = {}
    for part in (text or "").split(",") if text else ():
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or name.strip() in found:
            raise RefusedError(f"{option} {text!r}: expected NAME=VALUE,NAME=VALUE with each name once")
        found[name.strip()] = value.strip()
    return found
