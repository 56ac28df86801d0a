"""One answer of a completions endpoint, read with distrust."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from evalgate.backends.http_client import ServerError

Finish = Literal["stop", "length"]


class Completion(NamedTuple):
    """What a server gave for one prompt."""

    text: str
    finish_reason: Finish
    prompt_tokens: int
    """As the server counted them."""
    completion_tokens: int
    cached_tokens: int | None
    """None: the server does not say."""


def read_completion(body: Any, model: str) -> Completion:
    """Read ``body`` as the answer of ``model``.

    Raises ServerError for what is no answer, or not this model's: a score must not come of it.
    """
    if not isinstance(body, dict):
        raise ServerError(f"found {type(body).__name__}, expected an object")
    if body.get("error"):
        raise ServerError(f"the server says {str(body['error'])[:200]!r}")
    served = body.get("model")
    if served != model:
        raise ServerError(f"answered as model {served!r}, asked {model!r}")
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise ServerError(f"found {len(choices) if isinstance(choices, list) else 'no'} choices, expected one")
    text, finish = choices[0].get("text"), choices[0].get("finish_reason")
    if not isinstance(text, str):
        raise ServerError(f"the text of the answer is {text!r}")
    if finish not in ("stop", "length"):
        raise ServerError(f"the answer ended by {finish!r}, expected stop or length")
    usage = body.get("usage")
    counted = usage if isinstance(usage, dict) else {}
    prompt, completion = _count(counted.get("prompt_tokens")), _count(counted.get("completion_tokens"))
    if prompt is None or completion is None:
        raise ServerError("no usage with prompt_tokens and completion_tokens, so nothing shows that no prompt was cut")
    details = counted.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Completion(text, finish, prompt, completion, _count(cached))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
