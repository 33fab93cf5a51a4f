"""What people say on any platform, as the gateway takes it."""

from __future__ import annotations

import hashlib
from typing import Any

from miniclaw.channel_settings import PlatformAccount
from miniclaw.gateway.protocol import FileRef, Inbound, MessageType, TextPayload, now, plain_text

__all__ = ["spoken", "stable_id"]


def spoken(
    settings: PlatformAccount, channel: str, text: str, files: tuple[FileRef, ...] = (), **envelope: Any
) -> Inbound:
    """A message that a person typed; one without text and files is told as such."""
    text = plain_text(text)
    if not text.strip() and not files:
        text = "(empty message)"
    # A message may be its files alone.
    payload = TextPayload(text=text) if text.strip() else TextPayload.model_construct(text="")
    return Inbound(
        msg_type=MessageType.TEXT,
        source=f"{channel.partition('/')[0]}:{envelope['sender']}",
        payload=payload,
        timestamp=now(),
        channel=channel,
        strangers=settings.strangers,
        typed=True,
        files=files,
        **envelope,
    )


def stable_id(prefix: str, *parts: str) -> str:
    """The same id for the same message, whatever characters the platform's own has."""
    return f"{prefix}-{hashlib.sha256('|'.join(parts).encode('utf-8', 'replace')).hexdigest()[:24]}"
