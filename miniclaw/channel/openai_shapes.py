"""A turn in the shapes of OpenAI's API: https://platform.openai.com/docs/api-reference/chat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from aiohttp import web

from miniclaw.errors import ProtocolError
from miniclaw.gateway.events import LiveEvent
from miniclaw.gateway.http import STATUS, error_response, json_response
from miniclaw.gateway.protocol import Receipt
from miniclaw.gateway.reader import TurnReader

__all__ = ["MODEL", "SESSION_HEADER", "Answer"]

MODEL: Final = "miniclaw"
"""The one model that is listed; any other name that a client sends is answered by it too."""
SESSION_HEADER: Final = "X-Session-Id"
FAILED: Final = {"model_rate_limited": 429, "context_overflow": 400, "internal": 500}
"""Statuses of turns that failed; 502 for all else that a model may do."""


class Answer:
    """One turn in the shapes of the API."""

    def __init__(self, receipt: Receipt, moment: float, *, is_thrown: bool) -> None:
        self.session_id, self.turn_id = receipt.session_id or "", receipt.turn_id or ""
        self._created = int(moment)
        self.headers = {} if is_thrown else {SESSION_HEADER: self.session_id}

    def whole(self, end: LiveEvent) -> web.Response:
        """The answer in one piece, or the error that the turn ended with."""
        if end.name == "turn.failed":
            code = end.data["code"]
            response = error_response(ProtocolError(code, end.data["message"]))
            response.set_status(FAILED.get(code, STATUS.get(code, 502)))
            # The agent has tried again as often as it helps; a client's retry would be a second message.
            response.headers["x-should-retry"] = "false"
        else:
            message = {"role": "assistant", "content": end.data.get("text", "")}
            choice = {"index": 0, "message": message, "finish_reason": _finish(end), "logprobs": None}
            response = json_response(self._shape("chat.completion", [choice], usage=_usage(end)))
        response.headers.update(self.headers)
        return response

    async def chunks(self, reader: TurnReader, *, with_usage: bool) -> AsyncIterator[dict[str, Any]]:
        """The answer as it grows; what was said behind a tool call stands below what was said before."""
        yield self._delta({"role": "assistant", "content": ""})
        shown = segment = ""
        async for event in self._events(reader):
            if event.name == "tool.started":
                segment = ""
            elif event.name == "text.delta":
                text = event.data["text"]
                yield self._delta({"content": text if segment or not shown else f"\n\n{text}"})
                shown, segment = shown + text, segment + text
            elif event.name == "turn.failed":
                yield {"error": {**event.data, "type": event.data["code"]}}
            elif event.name in ("turn.finished", "turn.cancelled"):
                if rest := _rest(event.data.get("text", ""), segment):
                    yield self._delta({"content": rest if segment or not shown else f"\n\n{rest}"})
                yield self._delta({}, _finish(event))
                if with_usage:
                    yield self._shape("chat.completion.chunk", [], usage=_usage(event))

    async def _events(self, reader: TurnReader) -> AsyncIterator[LiveEvent]:
        try:
            async for event in reader.events():
                yield event
        except ProtocolError as error:  # the gateway stops
            data = {"code": error.code, "message": str(error)}
            ids = {"session_id": self.session_id, "turn_id": self.turn_id, "target": ""}
            yield LiveEvent("turn.failed", data, attempt=0, seq=0, **ids)

    def _delta(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return self._shape("chat.completion.chunk", [choice])

    def _shape(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        name = f"chatcmpl-{self.turn_id}"
        return {
            "id": name,
            "object": kind,
            "created": self._created,
            "model": MODEL,
            "choices": choices,
            **more,
        }


def _rest(text: str, segment: str) -> str:
    """What of the final text was not shown."""
    shown = segment.strip()
    return text.removeprefix(shown) if text.startswith(shown) else f"\n\n{text}"


def _finish(end: LiveEvent) -> str:
    return "length" if end.data.get("stopped_by") else "stop"


def _usage(end: LiveEvent) -> dict[str, Any]:
    used = end.data.get("usage") or {}
    sent, got = used.get("input_tokens", 0), used.get("output_tokens", 0)
    return {"prompt_tokens": sent, "completion_tokens": got, "total_tokens": sent + got}
