"""How one turn looks on our WebSocket, for the end-to-end harness; reads `MINICLAW_TOKEN`."""

from __future__ import annotations

import json
import os

PATH = f"/?token={os.environ.get('MINICLAW_TOKEN', '')}"
ready = None


def hello(i: int) -> list[str]:
    """Nothing to say first: the token is in the path."""
    return []


def ask(i: int, n: int, text: str) -> list[str]:
    """User turn `n` of connection `i`."""
    return [json.dumps({"msg_id": f"m{i}-{n}", "msg_type": "text", "payload": {"text": text}})]


def kind(message: bytes) -> str | None:
    """What a frame is: a streamed piece, the end of the turn, or neither."""
    if b'"name":"text.delta"' in message:
        return "token"
    if b'"name":"turn.finished"' in message or b'"name":"turn.failed"' in message:
        return "final"
    return None
