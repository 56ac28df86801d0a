"""Keys that sign evidence: Ed25519, as PEM files, used offline.

Everything here needs the extra `sign`; without it the import fails and the command line says how to install it.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.signer import CryptoSigner, Key, SSlibKey

from evalgate import disk
from evalgate.errors import InvalidEvidenceError, RefusedError, UnsupportedError

__all__ = ["new_key", "public_path", "read_pin", "read_signer"]

PUBLIC = ".pub"
PRIVATE_MODE = 0o600
_MAKE = "make one with `evalgate evidence keygen`"


def public_path(path: Path) -> Path:
    """Where the public half of the key at ``path`` lies."""
    return path.with_name(path.name + PUBLIC)


def new_key(path: Path) -> str:
    """Write a new private key to ``path``, for its owner alone, and its public half beside it; returns the key's id.

    Raises RefusedError (a file is there already: keys are never replaced) or StorageError.
    """
    for taken in (path, public_path(path)):
        if taken.exists():
            raise RefusedError(f"{taken} is there already, and a key is never replaced; choose another --out")
    private = Ed25519PrivateKey.generate()
    signer = CryptoSigner(private)
    disk.make_folder(path.parent)
    with disk.told("write", path):
        # Made with its mode, so that the key is at no moment readable by others.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(signer.private_bytes)
    disk.replace(public_path(path), private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return str(signer.public_key.keyid)


def read_signer(path: Path) -> CryptoSigner:
    """Read a private key.

    Raises InvalidEvidenceError (missing, no key) or UnsupportedError (not Ed25519, encrypted, a public one).
    """
    content = _content(path)
    if b"PUBLIC KEY" in content:
        raise UnsupportedError(f"{path} holds a public key, which cannot sign; name the private one")
    if b"ENCRYPTED" in content:
        raise UnsupportedError(f"{path} is encrypted, and no password is asked for; decrypt it with `openssl pkey`")
    try:
        private = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidEvidenceError(
            f"{path} is no private key in PEM; make one with `evalgate evidence keygen`"
        ) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise UnsupportedError(f"{path} is another key than Ed25519; {_MAKE}")
    return CryptoSigner(private)


def read_pin(path: Path) -> Key:
    """Read the public key of a signer. Raises InvalidEvidenceError or UnsupportedError, as ``read_signer`` does."""
    content = _content(path)
    if b"PRIVATE KEY" in content:
        raise UnsupportedError(f"{path} holds a private key; a signer is named by the public one, {public_path(path)}")
    try:
        public = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidEvidenceError(f"{path} is no public key in PEM; ask the signer for the .pub file") from error
    if not isinstance(public, Ed25519PublicKey):
        raise UnsupportedError(f"{path} is another key than Ed25519; evidence is signed with Ed25519")
    return SSlibKey.from_crypto(public)


def _content(path: Path) -> bytes:
    content = disk.read(path)
    if content is None:
        raise InvalidEvidenceError(f"key {path} does not exist; make a pair with `evalgate evidence keygen --out KEY`")
    return content
