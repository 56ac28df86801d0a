"""One answer of a completions or a chat endpoint, read with distrust."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from evalgate.backends.http_client import PassingError, ServerError

Finish = Literal["stop", "length"]
Api = Literal["completions", "chat"]
PATHS: dict[Api, str] = {"completions": "/completions", "chat": "/chat/completions"}


class Completion(NamedTuple):
    """What a server gave for one prompt."""

    text: str
    finish_reason: Finish
    prompt_tokens: int
    """As the server counted them."""
    completion_tokens: int
    cached_tokens: int | None
    """None: the server does not say."""
    answer_id: str | None
    """As the server calls this answer and no other; None: it does not say."""


def request_body(api: Api, model: str, prompt: object, max_tokens: int) -> dict[str, Any]:
    """What is sent for one greedy answer; ``prompt`` is text or token ids, for a chat the user's words."""
    asked = {"messages": [{"role": "user", "content": prompt}]} if api == "chat" else {"prompt": prompt}
    return {"model": model, **asked, "max_tokens": max_tokens, "temperature": 0}


def read_completion(body: Any, model: str) -> Completion:
    """Read ``body`` as the answer of ``model``.

    Raises ServerError for what is no answer, or not this model's: a score must not come of it.
    """
    _check_body(body, model)
    choice = _only_choice(body)
    message = choice.get("message")
    text, finish = (
        (message if isinstance(message, dict) else {}).get("content", choice.get("text")),
        choice.get("finish_reason"),
    )
    if not isinstance(text, str):
        raise ServerError("no-text", f"the text of the answer is {text!r}")
    if finish not in ("stop", "length"):
        raise ServerError("no-end", f"the answer ended by {finish!r}, expected stop or length")
    usage = body.get("usage")
    counted = usage if isinstance(usage, dict) else {}
    prompt, completion = _count(counted.get("prompt_tokens")), _count(counted.get("completion_tokens"))
    if prompt is None or completion is None:
        raise ServerError(
            "no-usage", "no usage with prompt_tokens and completion_tokens, so nothing shows that no prompt was cut"
        )
    details = counted.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    answer_id = body.get("id")
    return Completion(
        # JSON may hold half a surrogate pair, which is no text and cannot be kept as such.
        text.encode("utf-8", "replace").decode("utf-8"),
        finish,
        prompt,
        completion,
        _count(cached),
        answer_id if isinstance(answer_id, str) and answer_id else None,
    )


def said(event: Any) -> str:
    """The words that one event of a stream carries."""
    try:
        choice = event["choices"][0]
        words = choice["delta"].get("content") if "delta" in choice else choice.get("text")
    except (AttributeError, IndexError, KeyError, TypeError):
        return ""
    return words if isinstance(words, str) else ""


def joined(events: Sequence[Any], model: str) -> dict[str, Any]:
    """The events of a stream as the one body that would have come without it.

    Raises ServerError as :func:`read_completion` does, and PassingError for a stream that broke off.
    """
    for event in events:
        _check_body(event, model)
    choices = [_only_choice(event) for event in events if event.get("choices")]
    ends = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    if not ends:
        raise PassingError("torn", f"the stream broke off after {len(events)} events")
    usages = [event["usage"] for event in events if event.get("usage")]
    return {
        "id": events[0].get("id"),
        "model": model,
        "choices": [{"text": "".join(map(said, events)), "finish_reason": ends[-1]}],
        "usage": usages[-1] if usages else None,
    }


def _check_body(body: Any, model: str) -> None:
    if not isinstance(body, dict):
        raise ServerError("no-object", f"found {type(body).__name__}, expected an object")
    if body.get("error"):
        raise ServerError("server-said", f"the server says {str(body['error'])[:200]!r}")
    served = body.get("model")
    if served != model:
        raise ServerError("other-model", f"answered as model {served!r}, asked {model!r}")


def _only_choice(body: dict[str, Any]) -> dict[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        found = len(choices) if isinstance(choices, list) else "no"
        raise ServerError("no-choice", f"found {found} choices, expected one")
    return choices[0]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
