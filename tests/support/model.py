"""A fake OpenAI-compatible server over a real socket, which answers as a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web

Message = dict[str, Any]
Reply = dict[str, Any]
"""`{"text": …}` or `{"calls": [(name, arguments), …]}`, with `hold` = an event to wait for before the end.

`reasoning` goes out before the text. Arguments that are a string go out as they are. `status` (with `message`) = an HTTP error. `forever` = a delta, or
`None` for a keep-alive, that is repeated until the client goes away. `usage` replaces the usual one. `cut` = the
stream ends before it says so.
"""
Script = Callable[[list[Message], int], Awaitable[Reply] | Reply]


def last_user(messages: list[Message]) -> str:
    """The text of the last user message."""
    return next(str(m["content"]) for m in reversed(messages) if m["role"] == "user")


def echo(messages: list[Message], number: int) -> Reply:
    """Answer with the user's own text."""
    return {"text": f"echo: {last_user(messages)}"}


def illegal(messages: list[Message]) -> str | None:
    """What OpenAI would refuse about a history, or `None`."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return f"tool message without its call: {message['tool_call_id']}"
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            return f"calls without results: {open_calls}"
        if message["role"] == "assistant":
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
            if not open_calls and not message.get("content"):
                return "empty assistant message"
    return f"calls without results: {open_calls}" if open_calls else None


def strictly_illegal(messages: list[Message]) -> str | None:
    """What the strictest of servers would refuse beside that."""
    for number, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if role not in ("system", "user", "assistant", "tool") or (role == "system" and number):
            return f"message {number} is of role {role}; the system prompt stands first, once"
        if unknown := set(message) - {"role", "content", "tool_calls", "tool_call_id"}:
            return f"unknown field {unknown}"
        if role in ("system", "tool") and not isinstance(content, str):
            return f"the content of message {number} is no text"
        calls = message.get("tool_calls") or ()
        if len({call["id"] for call in calls}) < len(calls):
            return "two calls with one id"
        for call in calls:
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                return f"arguments that are no object: {call}"
    return None if messages[-1]["role"] in ("user", "tool") else "the last message is the model's own"


class FakeModel:
    """Serves `/v1/chat/completions` (streamed and not) and `/v1/models`; refuses illegal histories.

    Unless `strict` is false it refuses whatever any server might.

    Attributes:
        requests: the bodies received, oldest first.
        refused: what was illegal about the refused ones.
    """

    def __init__(self, script: Script = echo, *, strict: bool = True) -> None:
        self.script = script
        self.strict = strict
        self.requests: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.open_streams = 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake-embed"}, {"id": "fake-chat"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        problem = illegal(body["messages"])
        if (problem := problem or (strictly_illegal(body["messages"]) if self.strict else None)) is not None:
            self.refused.append(problem)
            return web.json_response({"error": {"message": problem}}, status=400)
        found = self.script(body["messages"], len(self.requests))
        reply: Reply = await found if isinstance(found, Awaitable) else found
        if (status := reply.get("status")) is not None:
            return web.json_response({"error": {"message": reply.get("message", "refused")}}, status=status)
        calls = [
            {
                "index": i,
                "id": f"call_{len(self.requests)}_{i}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for i, (name, arguments) in enumerate(reply.get("calls", ()))
        ]
        if not body.get("stream"):
            message = {"role": "assistant", "content": reply.get("text"), "tool_calls": calls or None}
            usage = {"usage": reply["usage"]} if "usage" in reply else {}
            return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}], **usage})
        try:
            return await self._stream(request, reply, calls)
        except ConnectionError:  # whoever asked has gone
            return web.Response()

    async def _stream(
        self, request: web.Request, reply: Reply, calls: list[dict[str, Any]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.open_streams += 1
        try:
            while "forever" in reply:
                if reply["forever"] is None:
                    await response.write(b": keep-alive\n\n")
                else:
                    await _send(response, reply["forever"])
                await asyncio.sleep(reply.get("pause", 0))
            if "reasoning" in reply:
                await _send(response, {"reasoning_content": reply["reasoning"]})
            text = reply.get("text", "")
            for start in range(0, len(text), 8):
                await _send(response, {"content": text[start : start + 8]})
            if (hold := reply.get("hold")) is not None:
                async with asyncio.timeout(30):
                    await hold.wait()
            if "calls" in reply:
                await _send(response, {"tool_calls": calls})
            if reply.get("cut"):
                return response
            await _send(response, {}, finish=reply.get("finish", "tool_calls" if calls else "stop"))
            used = reply.get("usage", {"prompt_tokens": 7, "completion_tokens": 3})
            usage = {"choices": [], "usage": used}
            await response.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())
        finally:
            self.open_streams -= 1
        return response


async def _send(response: web.StreamResponse, delta: dict[str, Any], *, finish: str | None = None) -> None:
    chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
