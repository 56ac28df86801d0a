"""DSSE envelopes: bytes, what they are, and who signed them.

A signature is over PAE(type, payload) = "DSSEv1" SP len(type) SP type SP len(payload) SP payload, so neither the bytes
nor what they are taken for can change. An envelope knows nothing of what its payload says.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from securesystemslib.dsse import Envelope as Signed
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, Key, Signature

from evalgate.errors import InvalidEvidenceError
from evalgate.versioned import canonical_digest, canonical_json

__all__ = ["Envelope", "Signing", "parse_json", "seal"]


class Signing(StrEnum):
    """What the signatures of an envelope say to those who trust a few keys."""

    VALID = "valid"
    OTHER_SIGNER = "other-signer"
    """No signature names a trusted key."""
    BROKEN = "broken"
    """A signature names a trusted key, and is not that key's signature of these bytes."""


class _Signature(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    keyid: str
    sig: str


class Envelope(BaseModel):
    """A DSSE envelope as JSON has it; payload and signatures in base64."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    payload: str
    payload_type: str = Field(alias="payloadType")
    signatures: list[_Signature] = Field(min_length=1)

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> Envelope:
        """Read an envelope. Raises InvalidEvidenceError, which names ``where``."""
        try:
            envelope = cls.model_validate(parse_json(text, where))
            for value in (envelope.payload, *(signature.sig for signature in envelope.signatures)):
                _decoded(value)
        except ValidationError as error:
            fault = error.errors()[0]
            told = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            raise InvalidEvidenceError(f"{where}: no DSSE envelope ({told}); fetch it again") from error
        except ValueError as error:
            raise InvalidEvidenceError(f"{where}: no DSSE envelope ({error}); fetch it again") from error
        return envelope

    @property
    def content(self) -> bytes:
        """The payload's bytes."""
        return _decoded(self.payload)

    @property
    def key_ids(self) -> list[str]:
        """Keys that it says to be signed by."""
        return [signature.keyid for signature in self.signatures]

    @property
    def digest(self) -> str:
        """sha256 over the canonical JSON of the envelope."""
        return canonical_digest(self.model_dump(mode="json", by_alias=True))

    @property
    def line(self) -> bytes:
        """The envelope as one line of canonical JSON."""
        return canonical_json(self.model_dump(mode="json", by_alias=True)) + b"\n"

    def signing(self, keys: Sequence[Key]) -> Signing:
        """What the signatures say to those who trust ``keys``; one good signature is enough."""
        trusted = {key.keyid for key in keys} & set(self.key_ids)
        if not trusted:
            return Signing.OTHER_SIGNER
        good = any(
            _verifies(Signed(self.content, self.payload_type, {}), signature, key)
            for signature in self.signatures
            for key in keys
            if signature.keyid == key.keyid
        )
        return Signing.VALID if good else Signing.BROKEN


def seal(content: bytes, payload_type: str, signer: CryptoSigner) -> Envelope:
    """Sign ``content`` as a ``payload_type``."""
    signed = Signed(content, payload_type, {})
    signed.sign(signer)
    return Envelope.model_validate(signed.to_dict())


def parse_json(text: str | bytes, where: str) -> Any:
    """Read JSON that every reader reads alike: no key twice, no NaN. Raises InvalidEvidenceError."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InvalidEvidenceError(f"{where}: not JSON ({error}); fetch it again") from error


def _verifies(signed: Signed, signature: _Signature, key: Key) -> bool:
    given = Signature(signature.keyid, _decoded(signature.sig).hex())
    try:
        Signed(signed.payload, signed.payload_type, {key.keyid: given}).verify([key], 1)
    except VerificationError:
        return False
    return True


def _decoded(text: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"no base64: {error}") from error
    # Bits that base64 leaves over are zero, so that the same bytes have one text.
    if base64.b64encode(content).decode() != text:
        raise ValueError("no canonical base64")
    return content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) < len(pairs):
        raise ValueError("a key is given twice")
    return body


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")
