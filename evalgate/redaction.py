"""Redaction: what a text must not keep is replaced before the text is written.

Found are secrets (keys, tokens, passwords), e-mail addresses, card numbers (with their check digit) and phone numbers,
and what a user's own patterns name. Values that were made up for a needle stay, or recall could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from evalgate.errors import RefusedError

__all__ = ["NOT_KEPT", "REMOVED", "Redactor", "is_redacted"]

NOT_KEPT: Final = "[not kept]"
"""Stands for a text that was never written."""
REMOVED: Final = "[removed]"
"""Stands for a text that was written and has expired."""

# A text may be long and nearly match everywhere: what repeats has a bound, or cannot begin in its own middle.
_TOKENS = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"\bsk-[\w-]{20,}",  # model providers
    r"\bhf_[A-Za-z0-9]{30,}",
    r"\bgh[oprsu]_[A-Za-z0-9]{36,}|\bgithub_pat_\w{22,}|\bglpat-[\w-]{20,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # cloud accounts
    r"\bAIza[\w-]{35}",
    r"\bxox[abeoprs]-[\w-]{10,}",
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}",  # JSON web tokens
)
_NAMES = r"api[ _-]?key|access[ _-]?key|secret|token|passw(?:or)?d|passphrase"
_NAMED = (
    r"(?i:\b(?:bearer|basic)\s+)(?P<secret>[\w.~+/-]{16,}=*)",
    rf"(?i:\b(?:{_NAMES})\b[\"']?\s*(?:[:=]|is)\s*[\"']?)(?P<secret>[^\s\"',;]{{6,}})",
    r"(?<![\w+.-])[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{1,200}:(?P<secret>[^\s/@]{1,200})@",
)
_EMAIL = r"(?<![\w.+-])[\w.+-]{1,200}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,9}"
_CARD = r"(?<![\w.])\d(?:[ -]?\d){12,18}(?!\w)"
_PHONE = (
    r"(?<![\w.])\+\d(?:[ ().-]{0,2}\d){7,14}(?!\w)",  # with a country
    r"(?<![\w.])(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?!\w)",
    r"(?<![\w.])0[1-9]\d{1,3}[ /-]\d{3,4}(?:[ -]?\d{2,5}){0,2}(?!\w)",
)


class _Rule(NamedTuple):
    kind: str
    pattern: re.Pattern[str]
    holds: Callable[[str], bool]


def _luhn(text: str) -> bool:
    """Whether the digits of ``text`` end in the check digit of a card number."""
    digits = [int(c) for c in reversed(text) if c.isdigit()]
    doubled = [2 * digit - 9 * (digit > 4) if at % 2 else digit for at, digit in enumerate(digits)]
    return sum(doubled) % 10 == 0 and len(set(digits)) > 1


def _any(_text: str) -> bool:
    return True


_RULES = (
    *(_Rule("secret", re.compile(pattern, re.DOTALL), _any) for pattern in (*_TOKENS, *_NAMED)),
    _Rule("email", re.compile(_EMAIL), _any),
    _Rule("card", re.compile(_CARD), _luhn),
    *(_Rule("phone", re.compile(pattern), _any) for pattern in _PHONE),
)


class Redactor:
    """Replaces what a text must not keep by its kind and a number: ``[email 1]``, the same for the same value.

    Raises RefusedError for a pattern that is no regular expression, or one that matches nothing at all.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._rules = (*(_own(pattern) for pattern in patterns), *_RULES)

    def __call__(self, text: str, keep: Collection[str] = ()) -> str:
        """Return ``text`` without what was found in it; what consists of values in ``keep`` stays."""
        numbers: dict[tuple[str, str], int] = {}
        values = "|".join(map(re.escape, sorted(keep, key=len, reverse=True)))
        made_up = re.compile(rf"(?<!\w)(?:{values})(?!\w)") if keep else None
        for rule in self._rules:
            text = "".join(_replaced(text, rule, made_up, numbers))
        return text


_MARK = re.compile(r"\[(?:secret|email|card|phone|redacted) \d+\]")


def is_redacted(text: str) -> bool:
    """Whether :class:`Redactor` may have replaced something in ``text``."""
    return _MARK.search(text) is not None


def _replaced(
    text: str, rule: _Rule, made_up: re.Pattern[str] | None, numbers: dict[tuple[str, str], int]
) -> Iterator[str]:
    """The pieces of ``text`` with what ``rule`` finds replaced."""
    done = 0
    made = set() if made_up is None else {at for match in made_up.finditer(text) for at in range(*match.span())}
    for match in rule.pattern.finditer(text):
        group = "secret" if "secret" in rule.pattern.groupindex else 0
        found, (start, end) = match[group], match.span(group)
        letters = {at for at in range(start, end) if text[at].isalnum()}
        if not rule.holds(found) or (letters and letters <= made):
            continue
        kinds = sum(kind == rule.kind for kind, _ in numbers)
        number = numbers.setdefault((rule.kind, found), kinds + 1)
        yield text[done:start]
        yield f"[{rule.kind} {number}]"
        done = end
    yield text[done:]


def _own(pattern: str) -> _Rule:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise RefusedError(f"--redact {pattern!r}: no regular expression ({error})") from error
    if compiled.match("") is not None:
        raise RefusedError(f"--redact {pattern!r}: matches nothing at all, so it would match everywhere")
    return _Rule("redacted", compiled, _any)
