"""Redaction: what must not be kept goes, made-up needle values and plain text stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalgate.errors import RefusedError
from evalgate.redaction import Redactor

PEM = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to ada.lovelace+x@mail.example.org today", "write to [email 1] today"),
        ("a@b.example, c@d.example and a@b.example", "[email 1], [email 2] and [email 1]"),
        ("card 4111 1111 1111 1111.", "card [card 1]."),
        ("card 4111-1111-1111-1111", "card [card 1]"),
        ("card 378282246310005", "card [card 1]"),
        ("call +49 (0)30 1234567 now", "call [phone 1] now"),
        ("call (555) 010-9999 now", "call [phone 1] now"),
        ("call 030 1234567", "call [phone 1]"),
        ("key sk-abcdefghijklmnopqrstuvwx", "key [secret 1]"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "[secret 1]"),
        ("hf_abcdefghijklmnopqrstuvwxyz01234567", "[secret 1]"),
        ("AKIAIOSFODNN7EXAMPLE", "[secret 1]"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4", "[secret 1]"),
        ("Authorization: Bearer abcdef0123456789abcdef", "Authorization: Bearer [secret 1]"),
        ("password: hunter2hunter2, next", "password: [secret 1], next"),
        ('{"api_key": "0123456789abcdef"}', '{"api_key": "[secret 1]"}'),
        ("the token is kJ8sQ2mN4pR6", "the token is [secret 1]"),
        ("postgres://user:pa55word@host/db", "postgres://user:[secret 1]@host/db"),
        (f"keys: {PEM} end", "keys: [secret 1] end"),
        (PEM[:40], "[secret 1]"),
    ],
)
def test_what_must_not_be_kept_goes(text: str, expected: str) -> None:
    """Each kind is replaced by its name and a number, the same for the same value, and the rest stays."""
    assert Redactor()(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The number of the amber tower is 4821.",
        "4111 1111 1111 1112",  # no card: the check digit is another
        "0000 0000 0000 0000",
        "2024-05-17 12:30:59",
        "123e4567-e89b-12d3-a456-426614174000",
        "3.14159265358979",
        "1,234,567 tokens in 8192",
        "a key of the token is in the secret garden",
        "x @ y and @name",
        "task multikey@8 at 1024",
        "192.168.100.200",
        "https://example.org/a/b?c=d",
    ],
)
def test_other_text_stays(text: str) -> None:
    """Numbers, dates, identifiers and words that only look alike are left as they are."""
    assert Redactor()(text) == text


def test_made_up_values_stay() -> None:
    """A needle's value is no secret, whatever it looks like; a value that is not the needle's is one."""
    redact = Redactor()
    card, other = "4111 1111 1111 1111", "5500 0000 0000 0004"

    assert redact(f"{card} or {other}", {card}) == f"{card} or [card 1]"
    assert redact("4111 1111 1111 1111", {"4111", "1111"}) == "4111 1111 1111 1111"
    assert redact("4111 1111 1111 1111", {"4111"}) == "[card 1]"
    assert redact("mail a@b.example", {"a@b.example"}) == "mail a@b.example"
    assert Redactor([r"\d{4}"])("565382 and 123456", {"565382"}) == "565382 and [redacted 1]56"
    assert redact(card, {"41", "11"}) == "[card 1]"
    assert Redactor([r"!{3}"])("565382!!!", {"565382"}) == "565382[redacted 1]"


def test_own_patterns_go_first() -> None:
    """A user's pattern is looked for too; one that cannot be, or would match everywhere, is refused."""
    redact = Redactor([r"\bEMP-\d{4}\b", r"(?i)project\s+\w+"])

    assert redact("EMP-1234 of Project Falcon, EMP-1234") == "[redacted 1] of [redacted 2], [redacted 1]"
    with pytest.raises(RefusedError, match="no regular expression"):
        Redactor(["("])
    with pytest.raises(RefusedError, match="match everywhere"):
        Redactor(["x*"])


@given(st.text(max_size=300))
def test_redaction_settles(text: str) -> None:
    """What was redacted is not found again, and nothing else is taken away with it."""
    redact = Redactor()
    once = redact(text)

    assert redact(once) == once


@given(
    st.text(st.characters(categories=["L", "Zs"]), max_size=50),
    st.sampled_from(["ada@mail.example.org", "4111 1111 1111 1111", "AKIAIOSFODNN7EXAMPLE", "+1 415 555 0123"]),
    st.text(st.characters(categories=["L", "Zs"]), max_size=50),
)
def test_nothing_hides_in_text(before: str, secret: str, after: str) -> None:
    """Wherever it stands among words, it goes."""
    assert secret not in Redactor()(f"{before} {secret} {after}")


def test_long_text_takes_no_time() -> None:
    """Text that nearly matches, fifty thousand characters of it, ends: no pattern goes back over and over."""
    for piece in ("a.", "1 ", "0123 ", "a@", "eyJ", "-----BEGIN ", "token=", "+1(", "sk-"):
        text = piece * (50_000 // len(piece))
        assert len(Redactor()(text)) > 0
