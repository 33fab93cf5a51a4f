"""`ask_agent`: an MCP client talks to the agent. The message takes everybody's way through the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from miniclaw.channel.forms import fill, form_in
from miniclaw.errors import ConfigError, MCPError, ProtocolError, StorageError
from miniclaw.gateway.protocol import TERMINAL_EVENTS, new_id
from miniclaw.mcp.call import Call
from miniclaw.mcp.offers import Object
from miniclaw.mcp.toolset import text_result

__all__ = ["AskAgent", "Door", "Link"]

PARTIAL_SECONDS: Final = 0.2
"""How often the growing answer is shown at most."""
PARTIAL_CHARS: Final = 4000
"""How much of its end is shown."""
STOP_SECONDS: Final = 2.0
"""How long the gateway may take to say which turn is to be cancelled."""

TOOL: Final[Object] = {
    "name": "ask_agent",
    "title": "Ask the agent",
    "description": (
        "Talk to the user's personal agent, which has its own tools, skills and long-term memory. Returns its"
        " answer and the id of the session; name that session to go on with the conversation."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What to say to the agent."},
            "session_id": {
                "type": "string",
                "description": "The session to go on with; leave it out to begin a new one.",
            },
        },
        "required": ["text"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": False, "openWorldHint": True},
}


class Link(Protocol):
    """A connection to the gateway, in this process or another: frames of its protocol."""

    async def send(self, frame: dict[str, Any]) -> None:
        """Send one frame."""
        ...

    def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Frames from the gateway until it closes."""
        ...


Door = Callable[[str], AbstractAsyncContextManager[Link]]
"""Opens a connection of that user, on which nothing was said yet."""


class AskAgent:
    """Offers the tool; each call is a connection of its own."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def list_tools(self, call: Call) -> Sequence[Object]:
        """The one tool."""
        return [TOOL]

    async def call_tool(self, name: str, arguments: Object, call: Call) -> Object | None:
        """Say something, show the answer while it grows, and return it."""
        if name != TOOL["name"]:
            return None
        text, session_id = arguments.get("text"), arguments.get("session_id")
        if not isinstance(text, str) or not isinstance(session_id, str | None):
            return text_result("`text` must be a text, and so must `session_id`, if given.", is_error=True)
        try:
            async with self._door(call.user) as link:
                return await _Talk(link, call).run(text, session_id)
        except (ConfigError, ProtocolError, StorageError) as error:
            return text_result(str(error), is_error=True)


class _Talk:
    """One turn, from the message to its end."""

    def __init__(self, link: Link, call: Call) -> None:
        self._link = link
        self._call = call
        self._text = ""
        self._progress = 0
        self._shown_at = 0.0
        self._sent = ""
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def run(self, text: str, session_id: str | None) -> Object:
        """Send the message, or find the turn again to which the client now brings its answers."""
        if "turn_id" in self._call.state:
            await self._send("command", {"name": "resume", "args": dict(self._call.state)})
        else:
            named = {"session_id": session_id} if session_id else {}
            await self._send("text", {"text": text, **named})
        try:
            return await self._read()
        except asyncio.CancelledError:
            if self._call.is_cancelled:
                await self._stop()
            raise
        finally:
            for task in self._asking.values():
                task.cancel()

    async def _read(self) -> Object:
        async for frame in self._link.frames():
            payload = frame["payload"]
            # An error that names no message is of one that could not be read.
            if frame["msg_type"] == "error" and payload.get("reply_to") in (None, self._sent):
                raise ProtocolError(payload["code"], payload["message"])
            if self._take_receipt(payload) or payload.get("turn_id") != self._call.state.get("turn_id"):
                continue
            if payload["name"] in TERMINAL_EVENTS:
                return self._result(payload["name"], payload["data"])
            await self._show(payload["name"], payload["data"])
        session_id = self._call.state.get("session_id")
        again = f" with the session_id {session_id}" if session_id else ""
        raise ProtocolError("draining", f"The gateway stopped; ask again{again} in a moment.")

    def _take_receipt(self, payload: Object) -> bool:
        if payload.get("name") != "message.accepted" or payload["data"]["reply_to"] != self._sent:
            return False
        self._call.state |= {name: payload["data"][name] for name in ("session_id", "turn_id")}
        return True

    async def _show(self, name: str, data: Object) -> None:
        match name:
            case "text.delta":
                self._text += data["text"]
                if time.monotonic() - self._shown_at >= PARTIAL_SECONDS:
                    self._shown_at = time.monotonic()
                    self._report(self._text[-PARTIAL_CHARS:])
            case "tool.started":
                self._report(f"⚙ {data['name']}")
            case "tool.progress":
                self._report(f"⚙ {data['message'] or data['progress']}")
            case "turn.queued" | "turn.started":
                self._report(name.removeprefix("turn."))
            case "turn.snapshot":
                self._text = data["text"]
                if data["approval"]:
                    await self._ask(data["approval"])
            case "approval.requested":
                await self._ask(data)
            case "approval.resolved" if data["approval_id"] in self._asking:
                self._asking.pop(data["approval_id"]).cancel()

    def _report(self, message: str) -> None:
        self._progress += 1
        self._call.progress(self._progress, message=message)

    async def _ask(self, question: Object) -> None:
        """Put an approval before the person at the client, where there is one.

        With a handshake the turn's events are read on meanwhile: somebody may answer elsewhere.
        """
        if self._call.is_modern:
            await self._decide(question)
        elif question["approval_id"] not in self._asking:
            task = asyncio.get_running_loop().create_task(self._decide(question))
            self._asking[question["approval_id"]] = task

    async def _decide(self, question: Object) -> None:
        approval_id = question["approval_id"]
        args: Object = {"approval_id": approval_id}
        if not self._call.can("elicitation/create"):
            await self._send("command", {"name": "deny", "args": {**args, "unattended": True}})
            return
        about = question.get("summary") or question.get("arguments")
        message = f"The agent wants to run `{question['tool']}`: {about}"
        form = form_in(question)
        fields, needed = form.get("properties", {}), tuple(form.get("required", ()))
        try:
            answer = await self._call.elicit(message, fields, required=needed, key=approval_id)
            if fields and answer["action"] == "accept":
                args["answer"] = fill(form, answer.get("content") or {})
        except (MCPError, ProtocolError):
            answer = {"action": "cancel"}
        name = "approve" if answer["action"] == "accept" else "deny"
        await self._send("command", {"name": name, "args": args})

    def _result(self, name: str, data: Object) -> Object:
        ids = {key: self._call.state[key] for key in ("session_id", "turn_id")}
        if name == "turn.finished":
            result = text_result(data["text"])
            stopped = {"stopped_by": data["stopped_by"]} if data.get("stopped_by") else {}
            result["structuredContent"] = {"text": data["text"], **ids, **stopped}
        else:
            text = data.get("message") or "The turn was cancelled."
            result = text_result(text, is_error=True)
        result["content"].append({"type": "text", "text": f"session_id: {ids['session_id']}"})
        return result

    async def _stop(self) -> None:
        """The client does not want the answer any more: end the turn, and not only our reading of it."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                if "turn_id" not in self._call.state:
                    async for frame in self._link.frames():
                        if self._take_receipt(frame["payload"]):
                            break
                args = {"turn_id": self._call.state["turn_id"]}
                await self._send("command", {"name": "cancel", "args": args})
        except (TimeoutError, KeyError, ConfigError):
            return  # the gateway is gone, or has refused the message

    async def _send(self, msg_type: str, payload: Object) -> None:
        msg_id = new_id("msg")
        if msg_type == "text" or payload.get("name") == "resume":
            self._sent = msg_id
        await self._link.send({"msg_id": msg_id, "msg_type": msg_type, "payload": payload})
