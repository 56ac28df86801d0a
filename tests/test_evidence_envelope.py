"""Envelopes: what is signed is exactly the DSSE encoding, and nothing of an envelope can be changed unseen."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from fixtures_evidence import Pair
from hypothesis import given
from hypothesis import strategies as st

from evalgate.errors import InvalidEvidenceError, RefusedError, UnsupportedError
from evalgate.gates.evidence_envelope import Envelope, Signing, parse_json, seal
from evalgate.gates.evidence_key import new_key, public_path, read_pin, read_signer

KEY = b"""-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g
-----END PRIVATE KEY-----
"""
"""Secret key of RFC 8032's first test of Ed25519, as PKCS 8."""

SIGNATURE = "4DHX3Zn4qpBKvEj7maE8O9u9bjXEnPLLnyXVUJ2PXJR8DSLcL3QDpFvfJOj3pB/SPHsl6Jg4boxsMb6KvuYABw=="
"""`openssl pkeyutl -sign -rawin` with that key over the DSSE specification's example of PAE:
DSSEv1 29 http://example.com/HelloWorld 11 hello world"""


@pytest.fixture
def envelope(keys: dict[str, Pair]) -> Envelope:
    """An envelope that ``ours`` signed."""
    return seal(b'{"recall": 1}', "application/json", keys["ours"].signer)


def test_signature_is_over_the_specified_bytes(tmp_path: Path) -> None:
    """The signature of the specification's example is the one that openssl makes of its encoding."""
    (tmp_path / "key").write_bytes(KEY)
    signed = seal(b"hello world", "http://example.com/HelloWorld", read_signer(tmp_path / "key"))

    assert signed.signatures[0].sig == SIGNATURE
    assert json.loads(signed.line) == {
        "payload": "aGVsbG8gd29ybGQ=",
        "payloadType": "http://example.com/HelloWorld",
        "signatures": [{"keyid": signed.key_ids[0], "sig": SIGNATURE}],
    }


@given(content=st.binary(max_size=200), kind=st.text(max_size=40), at=st.integers(0, 10**6))
def test_no_byte_of_content_or_type_can_change(keys: dict[str, Pair], content: bytes, kind: str, at: int) -> None:
    """Whatever is sealed verifies, and with one bit of it changed, or a letter moved between type and content, not."""
    pair = keys["ours"]
    whole = seal(content, kind, pair.signer)
    assert whole.signing([pair.pin]) is Signing.VALID
    assert Envelope.parse(whole.line, "line") == whole

    if content:
        changed = bytearray(content)
        changed[at % len(content)] ^= 1 << at % 8
        other = whole.model_copy(update={"payload": base64.b64encode(bytes(changed)).decode()})
        assert other.signing([pair.pin]) is Signing.BROKEN
    assert whole.model_copy(update={"payload_type": kind + "x"}).signing([pair.pin]) is Signing.BROKEN


def test_every_bit_of_a_signature_counts(envelope: Envelope, keys: dict[str, Pair]) -> None:
    """A signature with any bit flipped is broken."""
    (signature,) = envelope.signatures
    for bit in range(512):
        raw = bytearray(base64.b64decode(signature.sig))
        raw[bit // 8] ^= 1 << bit % 8
        spoilt = signature.model_copy(update={"sig": base64.b64encode(bytes(raw)).decode()})
        assert envelope.model_copy(update={"signatures": [spoilt]}).signing([keys["ours"].pin]) is Signing.BROKEN


def test_only_trusted_keys_count(envelope: Envelope, keys: dict[str, Pair]) -> None:
    """Another signer's signature says nothing, one that takes a trusted name is broken, and one good one is enough."""
    ours, theirs = keys["ours"], keys["theirs"]
    other = seal(envelope.content, envelope.payload_type, theirs.signer)
    both = envelope.model_copy(update={"signatures": [*other.signatures, *envelope.signatures]})
    named = other.signatures[0].model_copy(update={"keyid": ours.pin.keyid})

    assert envelope.signing([theirs.pin]) is Signing.OTHER_SIGNER
    assert envelope.signing([]) is Signing.OTHER_SIGNER
    assert envelope.signing([theirs.pin, ours.pin]) is Signing.VALID
    assert both.signing([ours.pin]) is Signing.VALID
    assert envelope.model_copy(update={"signatures": [named]}).signing([ours.pin]) is Signing.BROKEN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"payload": "", "payloadType": "x"}',
        '{"payload": "", "payloadType": "x", "signatures": []}',
        '{"payload": "", "payloadType": "x", "signatures": [{"keyid": "1"}]}',
        '{"payload": "", "payloadType": "x", "signatures": [{"keyid": "1", "sig": ""}], "more": 1}',
        '{"payload": "!", "payloadType": "x", "signatures": [{"keyid": "1", "sig": ""}]}',
        '{"payload": "QR==", "payloadType": "x", "signatures": [{"keyid": "1", "sig": ""}]}',
        '{"payload": "QQ=\\n=", "payloadType": "x", "signatures": [{"keyid": "1", "sig": ""}]}',
        '{"payload": 7, "payloadType": "x", "signatures": [{"keyid": "1", "sig": ""}]}',
    ],
)
def test_what_is_no_envelope_is_told(text: str) -> None:
    """Anything else than an envelope, with base64 of one spelling, names its place."""
    with pytest.raises(InvalidEvidenceError, match="here: "):
        Envelope.parse(text, "here")


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": [{"b": 1, "b": 1}]}', "[" * 100_000])
def test_json_that_readers_read_differently_is_refused(text: str) -> None:
    """A key twice, or a word that is no number, may not mean one thing here and another elsewhere."""
    with pytest.raises(InvalidEvidenceError):
        parse_json(text, "here")


def test_a_key_is_its_owners_alone_and_never_replaced(tmp_path: Path) -> None:
    """The private key is readable by nobody else, and a second key does not take its place."""
    path = tmp_path / "deep" / "key"
    identity = new_key(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert read_pin(public_path(path)).keyid == identity
    before = path.read_bytes()
    with pytest.raises(RefusedError, match="never replaced"):
        new_key(path)
    path.unlink()
    with pytest.raises(RefusedError, match="never replaced"):
        new_key(path)
    assert before not in public_path(path).read_bytes()


def test_wrong_keys_are_told(tmp_path: Path, keys: dict[str, Pair], repository: Path) -> None:
    """The two halves are not mistaken for each other, and neither is anything else for a key."""
    with pytest.raises(UnsupportedError, match="public key, which cannot sign"):
        read_signer(keys["ours"].public)
    with pytest.raises(UnsupportedError, match="holds a private key"):
        read_pin(keys["ours"].private)
    for read in (read_signer, read_pin):
        with pytest.raises(InvalidEvidenceError, match="in PEM"):
            read(repository / "README.md")
        with pytest.raises(InvalidEvidenceError, match="does not exist"):
            read(tmp_path / "nowhere")


def test_other_kinds_of_keys_are_refused(tmp_path: Path) -> None:
    """Evidence is Ed25519: a key of another curve, or one behind a password, says so."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    other = generate_private_key(SECP256R1())
    path = tmp_path / "key"
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(UnsupportedError, match="another key than Ed25519"):
        read_signer(path)
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    with pytest.raises(UnsupportedError, match="is encrypted"):
        read_signer(path)
    path.write_bytes(other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(UnsupportedError, match="another key than Ed25519"):
        read_pin(path)
