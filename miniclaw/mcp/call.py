"""What a handler sees of the request that it serves: who asks, and how to report, log and ask back.

A handler is written once for both wires. Where it needs something of the client it awaits `ask`: with a
handshake that is a request to the client in the middle of the call. The modern wire has none, so the call
ends with the questions, the client sends it again with its answers, and the handler runs again from its
beginning; what it must not do twice it does after the last `ask`, or notes in `state`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from miniclaw.errors import MCPError, MiniClawError
from miniclaw.mcp.protocol import (
    INVALID_PARAMS,
    LOG_LEVELS,
    META_CAPABILITIES,
    META_LOG_LEVEL,
    META_VERSION,
    MISSING_CAPABILITY,
    PROGRESS,
    Request,
    encode_notification,
)

if TYPE_CHECKING:
    from miniclaw.mcp.session import Session

__all__ = ["Answer", "Call", "InputRequired", "Question", "Send"]

Send = Callable[[bytes], None]
"""Takes a message; it never waits and never raises."""
Question = tuple[str, dict[str, Any]]
"""A method of the client, such as `elicitation/create`, and its parameters."""
Answer = dict[str, Any]

_CAPABILITY: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


class InputRequired(MiniClawError):
    """The call cannot go on without the client's answers; no fault, but how a modern call asks."""

    def __init__(self, questions: Mapping[str, Question]) -> None:
        super().__init__("input required")
        self.questions = dict(questions)


class Call:
    """One request of a client.

    Attributes:
        user: whose call it is.
        is_modern: whether the request came without a handshake.
        capabilities: what the client declared.
        state: what a handler notes for its next round; JSON, and never secret from the client.
        answers: what the client answered so far, by question.
        is_cancelled: whether the client does not want the result any more; else a call that ends early was
            ended with its connection.
    """

    __slots__ = (
        "_last_progress",
        "_send",
        "_token",
        "answers",
        "capabilities",
        "is_cancelled",
        "is_modern",
        "log_level",
        "request",
        "session",
        "state",
        "user",
    )

    def __init__(self, session: Session, request: Request, send: Send) -> None:
        meta = request.meta
        self.session = session
        self.request = request
        self.user = session.user
        self.is_modern = session.is_modern or META_VERSION in meta
        self.state: dict[str, Any] = {}
        self.answers: dict[str, Answer] = {}
        self.is_cancelled = False
        self._send = send
        token = meta.get("progressToken")
        self._token = token if isinstance(token, str | int) and not isinstance(token, bool) else None
        self._last_progress = float("-inf")
        self.capabilities: Mapping[str, Any] = session.capabilities
        self.log_level: str | None = session.log_level
        if self.is_modern:
            declared = meta.get(META_CAPABILITIES)
            self.capabilities = declared if isinstance(declared, dict) else {}
            self.log_level = meta.get(META_LOG_LEVEL)

    @property
    def wants_progress(self) -> bool:
        """Whether anybody reads `progress`."""
        return self._token is not None

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification that belongs to this call."""
        self._send(encode_notification(method, params))

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Say how far the call is, if the client asked for it; what does not grow is left out."""
        if self._token is None or progress <= self._last_progress:
            return
        self._last_progress = progress
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        self.notify(PROGRESS, params)

    def log(self, level: str, data: object, logger: str | None = None) -> None:
        """Send a log message, if the client wants those of this level."""
        if self.log_level not in LOG_LEVELS or LOG_LEVELS.index(level) < LOG_LEVELS.index(self.log_level):
            return
        params = {"level": level, "data": data, **({"logger": logger} if logger else {})}
        self.notify("notifications/message", params)

    def can(self, method: str, params: Mapping[str, Any] | None = None) -> bool:
        """Whether the client declared that it answers such a question."""
        declared = self.capabilities.get(_CAPABILITY[method])
        if not isinstance(declared, dict):
            return False
        if method != "elicitation/create":
            return True
        mode = (params or {}).get("mode", "form")
        return mode in declared or (mode == "form" and "url" not in declared)

    def require(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Refuse the call of a client that cannot answer such a question.

        Raises:
            MCPError: `MISSING_CAPABILITY`, or `INVALID_PARAMS` with a handshake.
        """
        if self.can(method, params):
            return
        name = _CAPABILITY[method]
        message = f"This needs a client with the capability `{name}`."
        if self.is_modern:
            raise MCPError(MISSING_CAPABILITY, message, {"requiredCapabilities": {name: {}}})
        raise MCPError(INVALID_PARAMS, message)

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Answer]:
        """Put questions to the client and return its answers under the same keys.

        Raises:
            InputRequired: (modern) the answers are not here yet; let it pass.
            MCPError: the client cannot answer, refused, or answered something else.
        """
        missing = {key: question for key, question in questions.items() if key not in self.answers}
        for method, params in missing.values():
            self.require(method, params)
        if missing and self.is_modern:
            raise InputRequired(missing)
        if missing:
            asked = [self.session.request(*question, send=self._send) for question in missing.values()]
            for key, answer in zip(missing, await asyncio.gather(*asked), strict=True):
                if not is_answer(missing[key][0], answer):
                    raise MCPError(INVALID_PARAMS, f"The client's answer to `{missing[key][0]}` is none.")
                self.answers[key] = answer
        return {key: self.answers[key] for key in questions}

    async def elicit(
        self, message: str, properties: dict[str, Any], *, required: tuple[str, ...] = (), key: str = "input"
    ) -> Answer:
        """Ask the person at the client to fill in a form; `{"action": "accept", "content": {…}}` or less."""
        schema = {"type": "object", "properties": properties, "required": list(required)}
        params = {"message": message, "requestedSchema": schema}
        return (await self.ask({key: ("elicitation/create", params)}))[key]


def is_answer(method: str, value: object) -> bool:
    """Whether a value can be the client's answer to a question of that method."""
    if not isinstance(value, dict):
        return False
    if method == "elicitation/create":
        content = value.get("content", {})
        return value.get("action") in ("accept", "decline", "cancel") and isinstance(content, dict | None)
    if method == "roots/list":
        return isinstance(value.get("roots"), list)
    return isinstance(value.get("content"), dict | list)
