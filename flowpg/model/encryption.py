"""Encryption of values: AES-GCM, each value bound to its place, with keys that can be rotated.

Needs the package ``cryptography`` (``pip install flowpg[encryption]``).

What is stored is the nonce (12 bytes), the ciphertext and the tag (16 bytes); the additional data
is the place of the value. The nonce is the keyed hash of place and value, so that the same value at
the same place becomes the same bytes; whoever reads the database learns only that. Two different
values share a nonce with a probability of one in 2^96 for each pair.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from flowpg.errors import InvalidArgument, UndecodablePayload, UnknownKey

_NONCE = 12
_TAG = 16
_MAX_KEY_ID = 100


class Encryption:
    """``Encryption({"2025": old, "2026": new})``: encrypts with the last key, or the one that
    ``encrypt_with`` names, and decrypts with any.

    A key is 16, 24 or 32 random bytes. The mapping is looked at whenever a key is wanted, so it may
    be one of your own that asks a key store. A value under a key that is not here raises
    UnknownKey: its run is blocked until the key is.
    """

    name = "aes-gcm"

    def __init__(self, keys: Mapping[str, bytes], encrypt_with: str | None = None) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise InvalidArgument(
                "Encryption needs the package cryptography: pip install 'flowpg[encryption]'"
            ) from None
        self._aes = AESGCM
        self._keys = keys
        newest = next(reversed(list(keys)), None) if encrypt_with is None else encrypt_with
        if newest is None or newest not in keys:
            raise InvalidArgument("Encryption needs a key to encrypt with")
        for key_id in keys:
            if not key_id.isascii() or not 0 < len(key_id) <= _MAX_KEY_ID:
                raise InvalidArgument(f"a key id is 1 to {_MAX_KEY_ID} ASCII characters")
        self._newest = newest
        self._ciphers: dict[str, tuple[bytes, Any, bytes]] = {}
        self._cipher(newest)

    def encode(self, data: bytes, place: bytes) -> tuple[bytes, str]:
        """See ``PayloadCodec``."""
        cipher, nonces = self._cipher(self._newest)
        counted = len(place).to_bytes(8, "big") + place + data
        nonce = hmac.digest(nonces, counted, "sha256")[:_NONCE]
        return nonce + cipher.encrypt(nonce, data, place), self._newest

    def decode(self, data: bytes, place: bytes, parameter: str) -> bytes:
        """See ``PayloadCodec``."""
        from cryptography.exceptions import InvalidTag

        cipher, _ = self._cipher(parameter)
        if len(data) < _NONCE + _TAG:
            raise UndecodablePayload("the ciphertext is cut")
        try:
            found: bytes = cipher.decrypt(data[:_NONCE], data[_NONCE:], place)
        except InvalidTag:
            raise UndecodablePayload(
                f"it does not decrypt with key {parameter[:_MAX_KEY_ID]!r}: it was changed, "
                "belongs to another run or event, or that is another key of the same id"
            ) from None
        return found

    def _cipher(self, key_id: str) -> tuple[Any, bytes]:
        key = self._keys.get(key_id)
        if key is None:
            raise UnknownKey(
                f"it is encrypted with key {key_id[:_MAX_KEY_ID]!r}, which this process does not "
                "have; the run goes on where it is"
            )
        known = self._ciphers.get(key_id)
        if known is None or known[0] != key:
            try:
                cipher = self._aes(key)
            except (TypeError, ValueError):
                raise InvalidArgument(f"key {key_id!r} is not of 16, 24 or 32 bytes") from None
            nonces = hmac.digest(key, b"flowpg.nonce.v1", "sha256")
            known = self._ciphers[key_id] = (key, cipher, nonces)
        return known[1], known[2]

    def __repr__(self) -> str:
        return f"<Encryption with key {self._newest!r} of {len(self._keys)}>"
