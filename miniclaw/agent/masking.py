"""Keeps secrets out of what is written down: those of the settings, and what looks like one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, SecretStr

__all__ = ["mask", "secrets_of"]

SECRET_LENGTH: Final = 8
"""A shorter one is a placeholder, and may be any word."""
_KEYS: Final = (
    *("password", "passwd", "secret", "token", "api_key", "apikey", "api-key", "authorization", "cookie"),
    *("auth-key", "auth_key", "private_key", "private-key", "access_key", "access-key"),
)
_KEY_ENDS: Final = tuple(f"{key}{end}" for key in _KEYS for end in ('":', '\\":'))
_KEYED: Final = re.compile(
    # A value ends at a quote with as many backslashes as the one that it begins with, or where the text was cut.
    rf'((?<!\\)(?P<esc>\\*)"[\w-]{{0,60}}(?:{"|".join(_KEYS)})(?P=esc)":\s*(?P=esc)")'
    r'.{1,4000}?((?<!\\)(?P=esc)"|\Z)',
    re.IGNORECASE | re.DOTALL,
)
_IN_URL: Final = re.compile(rf'([?&][\w-]{{0,40}}(?:{"|".join(_KEYS)})=)[^&\s"\'\\]+', re.IGNORECASE)
_MARKS: Final = (
    *("sk-", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxa-", "xoxb-", "xoxp-", "xoxs-", "whsec_"),
    *("AKIA", "eyJ", "Bearer "),
)
_SHAPED: Final = re.compile(
    r"\b(?:sk-[\w-]{16,}|(?:ghp|gho|ghs|github_pat|glpat|xox[abps]|whsec)[_-][\w-]{10,}|AKIA[0-9A-Z]{16}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)|(?<=Bearer )[\w.~+/=-]{8,}"
)


def secrets_of(settings: BaseModel, *more: str) -> set[str]:
    """Every secret in the settings, and `more`; what is too short to be one is left out."""
    found = {word for word in more if len(word) >= SECRET_LENGTH}
    values = [getattr(settings, name) for name in type(settings).model_fields]
    for value in values:
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, tuple):
            values += value
        elif isinstance(value, SecretStr):
            found |= {word for word in value.get_secret_value().split() if len(word) >= SECRET_LENGTH}
        elif isinstance(value, BaseModel):
            found |= secrets_of(value)
    return found


def mask(text: str, known: Sequence[str] = ()) -> str:
    """JSON without secrets: the known ones, and what looks like one by its shape or its key."""
    for secret in known:
        if secret in text:
            # Behind an odd backslash the first character is that of an escape, such as the n of a new line.
            text = re.sub(rf"(?<!\\)((?:\\\\)*){re.escape(secret)}", r"\1[secret]", text)
    # Looking for a few words first costs a hundredth of what the expressions cost.
    if any(mark in text for mark in _MARKS):
        text = _SHAPED.sub("[secret]", text)
    lower = text.lower()
    if any(end in lower for end in _KEY_ENDS):
        text = _KEYED.sub(r"\1[secret]\3", text)
    if any(f"{key}=" in lower for key in _KEYS):
        text = _IN_URL.sub(r"\1[secret]", text)
    return text
