"""Feishu's encryption and signature of events.

Rules: https://open.feishu.cn/document/ukTMukTMukTM/uYDNxYjL2QTM24iN0EjN/event-subscription-configure-/encrypt-key-encryption-configuration-case:
AES-256-CBC, the key is the SHA-256 of the Encrypt Key, the first block is the IV, padded by PKCS #7.
"""

from __future__ import annotations

import base64
import hashlib
import os

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

__all__ = ["decrypt", "encrypt", "sign"]

BLOCK = 16


def sign(encrypt_key: str, moment: str, nonce: str, body: bytes) -> str:
    """The signature of a request's raw body."""
    return hashlib.sha256(f"{moment}{nonce}{encrypt_key}".encode("utf-8", "replace") + body).hexdigest()


def encrypt(encrypt_key: str, text: str, *, iv: bytes | None = None) -> str:
    """What stands in the field `encrypt` of a request; the IV is random unless given."""
    iv = iv or os.urandom(BLOCK)
    padder = PKCS7(BLOCK * 8).padder()
    padded = padder.update(text.encode()) + padder.finalize()
    encryptor = _cipher(encrypt_key, iv).encryptor()
    return base64.b64encode(iv + encryptor.update(padded) + encryptor.finalize()).decode()


def decrypt(encrypt_key: str, encrypted: str) -> str:
    """The clear text.

    Raises:
        ValueError: it was not encrypted with this key.
    """
    data = base64.b64decode(encrypted, validate=True)
    if len(data) < 2 * BLOCK or len(data) % BLOCK:
        raise ValueError("the ciphertext is no whole number of blocks")
    decryptor = _cipher(encrypt_key, data[:BLOCK]).decryptor()
    unpadder = PKCS7(BLOCK * 8).unpadder()
    padded = decryptor.update(data[BLOCK:]) + decryptor.finalize()
    return (unpadder.update(padded) + unpadder.finalize()).decode()


def _cipher(encrypt_key: str, iv: bytes) -> Cipher[modes.CBC]:
    key = hashlib.sha256(encrypt_key.encode()).digest()
    return Cipher(algorithms.AES256(key), modes.CBC(iv))
