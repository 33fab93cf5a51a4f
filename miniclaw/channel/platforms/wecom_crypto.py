"""WeCom's signature and encryption of callbacks.

Rules: https://developer.work.weixin.qq.com/document/path/90968: SHA-1 over the sorted parts; AES-256-CBC whose IV
is the key's first block, padded to 32 bytes; inside 16 random bytes, a length, the message, and who it is for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from miniclaw.errors import ConfigError, ProtocolError

__all__ = ["WeComCrypto"]

BLOCK = 16
PADDING = PKCS7(32 * 8)


class WeComCrypto:
    """The two secrets of one callback address, and whom it is for: the corp, or nobody for an AI bot.

    Raises:
        ConfigError: the key has not the form that WeCom's console makes.
    """

    def __init__(self, token: str, encoding_aes_key: str, receive_id: str) -> None:
        try:
            key = base64.b64decode(f"{encoding_aes_key}=", validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != 32:
            raise ConfigError("WECOM_ENCODING_AES_KEY must be the 43 characters that WeCom's console shows.")
        self._token = token
        self._receive_id = receive_id.encode()
        self._cipher = Cipher(algorithms.AES256(key), modes.CBC(key[:BLOCK]))

    def sign(self, moment: str, nonce: str, encrypted: str) -> str:
        """The signature of a request or an answer."""
        parts = sorted((self._token, moment, nonce, encrypted))
        return hashlib.sha1("".join(parts).encode("utf-8", "replace"), usedforsecurity=False).hexdigest()

    def check(self, given: str, moment: str, nonce: str, encrypted: str) -> None:
        """Compare a signature.

        Raises:
            ProtocolError: `unauthorized`.
        """
        expected = self.sign(moment, nonce, encrypted)
        if not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode()):
            raise ProtocolError("unauthorized", "the signature does not match (WECOM_TOKEN)")

    def encrypt(self, text: str, *, random: bytes | None = None) -> str:
        """What stands in the field `encrypt`; the 16 bytes before it are random unless given."""
        message = text.encode()
        data = (random or os.urandom(BLOCK)) + struct.pack(">I", len(message)) + message + self._receive_id
        padder, encryptor = PADDING.padder(), self._cipher.encryptor()
        padded = padder.update(data) + padder.finalize()
        return base64.b64encode(encryptor.update(padded) + encryptor.finalize()).decode()

    def decrypt(self, encrypted: str) -> str:
        """The clear text.

        Raises:
            ProtocolError: `unauthorized`: it is for another corp, or for an app and not for a bot.
            ValueError: it was not encrypted with this key.
        """
        data = self.decrypt_file(base64.b64decode(encrypted.encode(), validate=True))
        if len(data) < BLOCK + 4:
            raise ValueError("the clear text is too short (WECOM_ENCODING_AES_KEY)")
        end = BLOCK + 4 + int(struct.unpack(">I", data[BLOCK : BLOCK + 4])[0])
        if end > len(data):
            raise ValueError("the clear text is shorter than it says (WECOM_ENCODING_AES_KEY)")
        if not hmac.compare_digest(data[end:], self._receive_id):
            raise ProtocolError("unauthorized", "the receive id does not match (WECOM_CORP_ID)")
        return data[BLOCK + 4 : end].decode()

    def decrypt_file(self, data: bytes) -> bytes:
        """The content of a file that was sent to an AI bot; raises as `decrypt` does."""
        if not data or len(data) % BLOCK:
            raise ValueError("the ciphertext is no whole number of blocks")
        decryptor, unpadder = self._cipher.decryptor(), PADDING.unpadder()
        padded = decryptor.update(data) + decryptor.finalize()
        try:
            return unpadder.update(padded) + unpadder.finalize()
        except ValueError as error:
            raise ValueError("the padding is wrong (WECOM_ENCODING_AES_KEY)") from error
