"""The rounds of a modern call that asks back: what goes out with the questions and comes back with the answers.

Rules are those of https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr. The state
travels through the client, so it is signed, and good only for the same request of the same user for a while.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from miniclaw.errors import MCPError
from miniclaw.mcp.call import Call, InputRequired, is_answer
from miniclaw.mcp.protocol import INVALID_PARAMS

__all__ = ["ASKING", "Rounds"]

ASKING: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The only methods that may end with questions."""
STATE_SECONDS: Final = 3600.0
"""How long a person may take to answer."""


class Rounds:
    """Seals and opens `requestState`."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock

    def open(self, call: Call) -> None:
        """Give the call what its earlier rounds left and what the client answered now.

        An answer of the wrong shape counts as none, so that it is asked for again.

        Raises:
            MCPError: `INVALID_PARAMS`: the state is not ours, or no longer good.
        """
        params = call.request.params
        asked: dict[str, str] | None = None
        if "requestState" in params:
            kept = self._unseal(params["requestState"], call)
            call.state, call.answers, asked = kept["state"], kept["answers"], kept["asked"]
        if "inputResponses" not in params:
            return
        given = params["inputResponses"]
        if not isinstance(given, dict):
            raise MCPError(INVALID_PARAMS, "`inputResponses` must be an object.")
        for key, answer in given.items():
            methods = ("elicitation/create", "sampling/createMessage", "roots/list")
            wanted = methods if asked is None else (asked[key],) if key in asked else ()
            if any(is_answer(method, answer) for method in wanted):
                call.answers[key] = answer

    def close(self, call: Call, required: InputRequired) -> dict[str, Any]:
        """The result that puts the questions to the client."""
        questions = {
            key: {"method": method, "params": params} for key, (method, params) in required.questions.items()
        }
        kept = {
            "state": call.state,
            "answers": call.answers,
            "asked": {key: method for key, (method, _) in required.questions.items()},
            "of": _digest(call),
            "until": self._clock() + STATE_SECONDS,
        }
        return {
            "resultType": "input_required",
            "inputRequests": questions,
            "requestState": self._seal(kept),
        }

    def _seal(self, kept: dict[str, Any]) -> str:
        body = json.dumps(kept, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(hmac.digest(self._key, body, "sha256") + body).decode()

    def _unseal(self, sealed: object, call: Call) -> dict[str, Any]:
        raw = b""
        if isinstance(sealed, str) and sealed.isascii():
            try:
                raw = base64.b64decode(sealed.encode(), altchars=b"-_", validate=True)
            except ValueError:
                raw = b""
        mark, body = raw[:32], raw[32:]
        if hmac.compare_digest(mark, hmac.digest(self._key, body, "sha256")):
            kept: dict[str, Any] = json.loads(body)
            if kept["of"] == _digest(call) and kept["until"] >= self._clock():
                return kept
        raise MCPError(INVALID_PARAMS, "`requestState` is not one of this request, or too old; call again.")


def _digest(call: Call) -> str:
    """What makes a request the same one in its next round."""
    params = {
        key: value
        for key, value in call.request.params.items()
        if key not in ("_meta", "inputResponses", "requestState")
    }
    text = json.dumps([call.user, call.request.method, params], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
