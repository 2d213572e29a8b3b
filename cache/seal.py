"""How bytes are stored so that damage shows: with a checksum, or encrypted with a key of the user's.

`context` says what the bytes are (which state, which piece): bytes that are whole but in the wrong place are
damage too.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from typing import Protocol

from edgecloud.errors import StorageError

_NONCE = 12


class Damaged(Exception):
    """The bytes are not what was sealed, or not where."""


class Seal(Protocol):
    """`lock` names the key, empty for none; `secret` is for hashes that must not be guessed."""

    lock: bytes
    secret: bytes

    def close(self, data: bytes | memoryview, context: bytes) -> tuple[bytes | memoryview, bytes]:
        """What to store: the data, and what `open` checks it by."""
        ...

    def open(self, data: bytes, check: bytes, context: bytes) -> bytes:
        """The data again. Raises `Damaged`."""
        ...


class Checksum:
    """A BLAKE2b-128 hash beside the plain data: about a gigabyte a second."""

    lock = b""
    secret = b""

    def close(self, data: bytes | memoryview, context: bytes) -> tuple[bytes | memoryview, bytes]:
        return data, self._hash(data, context)

    def open(self, data: bytes, check: bytes, context: bytes) -> bytes:
        if self._hash(data, context) != check:
            raise Damaged
        return data

    def _hash(self, data: bytes | memoryview, context: bytes) -> bytes:
        digest = hashlib.blake2b(len(context).to_bytes(8, "little") + context, digest_size=16)
        digest.update(data)
        return digest.digest()


class Encryption:
    """AES-256-GCM under a key derived from `password` by scrypt (RFC 7914; about 50 ms).

    Raises `StorageError` where the `cryptography` package is missing.
    """

    def __init__(self, password: str, salt: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise StorageError(
                "Encrypting saved prefixes needs the package cryptography: `pip install cryptography`, or "
                "remove cache.prefix_key."
            ) from None
        derived = hashlib.scrypt(password.encode(), salt=salt, n=2**14, r=8, p=1, dklen=64)
        self.secret = derived[32:]
        self.lock = hmac.digest(self.secret, b"lock", "sha256")[:8]
        self._cipher = AESGCM(derived[:32])
        self._refused: type[Exception] = InvalidTag

    def close(self, data: bytes | memoryview, context: bytes) -> tuple[bytes, bytes]:
        # Random nonces are safe for 2^32 pieces under one key: 64 petabytes of chunks.
        nonce = os.urandom(_NONCE)
        return self._cipher.encrypt(nonce, data, context), nonce

    def open(self, data: bytes, check: bytes, context: bytes) -> bytes:
        try:
            return self._cipher.decrypt(check, data, context)
        except (self._refused, ValueError):
            raise Damaged from None


MakeSeal = Callable[[bytes], Seal]
"""A seal for a file with this salt."""


def plain(_salt: bytes) -> Seal:
    """Checksums only."""
    return Checksum()


def encrypted(password: str) -> MakeSeal:
    """Encryption under a password."""
    return lambda salt: Encryption(password, salt)
