"""The conversation loop of `miniclaw chat`: lines in, frames out, events onto the screen."""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from miniclaw.cli.link import Link, open_link
from miniclaw.cli.once import interruptible, once
from miniclaw.cli.screen import Screen
from miniclaw.config import LoadedSettings
from miniclaw.errors import ProtocolError
from miniclaw.gateway.command_table import read_command
from miniclaw.gateway.protocol import TERMINAL_EVENTS, new_id, plain_text

__all__ = ["chat", "readable"]

ReadLine = Callable[[], Awaitable[str | None]]
"""Reads a line of the user; `None` at the end of input."""
LEAVE = frozenset({"exit", "quit", "/exit", "/quit"})


async def chat(loaded: LoadedSettings, args: argparse.Namespace) -> int:
    """Open a link and talk over it; returns the exit code."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a pipe may hold anything
    async with open_link(loaded, connect=args.connect, user_id=args.user_id) as (link, where, attached):
        interactive = args.once is None and sys.stdin.isatty()
        read_line = _prompt() if interactive else _read_line
        conversation = Conversation(
            link, Screen(quiet=args.json), args.allow, ask=read_line if interactive else None
        )
        reader = asyncio.get_running_loop().create_task(conversation.read())
        reader.add_done_callback(conversation.reader_ended)
        try:
            await conversation.enter(session_id=args.session, latest=args.resume)
            if args.model and attached:
                await conversation.switch_model(args.model)
            if args.once is not None:
                return await once(conversation, readable(args.once), as_json=args.json)
            if interactive:
                conversation.screen.banner(where)
            return await _talk(conversation, read_line)
        finally:
            reader.cancel()


class Conversation:
    """One terminal's conversation: sends lines, waits for ends, answers approvals.

    Args:
        link: to the gateway.
        screen: what is shown.
        allow: tools that are approved without asking.
        ask: reads a person's answer to a question; `None` = nobody is there.
    """

    def __init__(self, link: Link, screen: Screen, allow: list[str], *, ask: ReadLine | None) -> None:
        self.screen = screen
        self.session_id: str | None = None
        self.turn_id: str | None = None
        self._link = link
        self._allow = frozenset(allow)
        self._ask = ask
        self._broken: BaseException | None = None
        self._replies: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._end: asyncio.Future[dict[str, Any]] | None = None
        self._approvals: asyncio.Queue[dict[str, Any]] = asyncio.Queue(64)

    async def read(self) -> None:
        """Take frames until the link closes; then nobody waits for an answer any more."""
        async for frame in self._link.frames():
            payload = frame["payload"]
            if frame["msg_type"] == "error":
                self._answer(payload.get("reply_to"), payload)
            elif payload["name"] in ("message.accepted", "command.result"):
                self._answer(payload["data"]["reply_to"], payload["data"])
            elif payload.get("turn_id") and payload["turn_id"] == self.turn_id:
                await self._on_event(payload)
        closed = {"code": "unreachable", "message": "The gateway closed the connection; use --resume."}
        for waiting in [*self._replies.values(), self._end]:
            if waiting is not None and not waiting.done():
                waiting.set_result({"name": "turn.failed", "data": closed, **closed})

    async def enter(self, *, session_id: str | None, latest: bool) -> None:
        """Go on with a session, or begin with the first message."""
        if latest and session_id is None:
            rows = (await self.command("sessions"))["sessions"]
            session_id = rows[0]["session_id"] if rows else None
        if session_id is not None:
            self.session_id = (await self.command("resume", {"session_id": session_id}))["session_id"]

    def reader_ended(self, reader: asyncio.Task[None]) -> None:
        """Whoever waits for an answer learns why none will come, such as an output that is closed."""
        if reader.cancelled() or (error := reader.exception()) is None:
            return
        self._broken = error
        for waiting in [*self._replies.values(), self._end]:
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)

    async def switch_model(self, name: str) -> None:
        """Have another model in this conversation."""
        if self.session_id is None:
            self.session_id = (await self.command("new"))["session_id"]
        await self.command("model", {"name": name})

    async def command(self, name: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a command and return its result.

        Raises:
            ProtocolError: the gateway refused it.
        """
        reply = await self._request("command", {"name": name, "args": args or {}})
        if "code" in reply:
            raise ProtocolError(reply["code"], reply["message"])
        result: dict[str, Any] = reply["result"]
        return result

    async def say(self, text: str) -> dict[str, Any]:
        """Send a text and return the payload of the turn's end.

        Raises:
            ProtocolError: the gateway refused it.
        """
        self._end = asyncio.get_running_loop().create_future()
        payload = {"text": text, **({"session_id": self.session_id} if self.session_id else {})}
        reply = await self._request("text", payload)
        if "code" in reply:
            raise ProtocolError(reply["code"], reply["message"])
        self.session_id = reply["session_id"]
        asking = asyncio.get_running_loop().create_task(self._ask_person())
        try:
            return await self._end
        finally:
            asking.cancel()
            self.turn_id = self._end = None

    async def cancel(self) -> None:
        """Stop the running turn."""
        if self.turn_id is not None:
            args = {"turn_id": self.turn_id}
            await self._send("command", {"name": "cancel", "args": args})

    async def _on_event(self, payload: dict[str, Any]) -> None:
        name, data = payload["name"], payload["data"]
        self.screen.show(name, data)
        if name == "approval.requested":
            await self._on_approval(data)
        elif name in TERMINAL_EVENTS and self._end is not None and not self._end.done():
            self._end.set_result(payload)

    async def _on_approval(self, data: dict[str, Any]) -> None:
        if data["tool"] in self._allow:
            await self._send("command", {"name": "approve", "args": {"approval_id": data["approval_id"]}})
        elif self._ask is None:
            args = {"approval_id": data["approval_id"], "unattended": True}
            await self._send("command", {"name": "deny", "args": args})
        elif not self._approvals.full():
            self._approvals.put_nowait(data)

    async def _ask_person(self) -> None:
        """Put questions to the person, one after the other, while the turn waits."""
        while True:
            data = await self._approvals.get()
            self.screen.question(data)
            try:
                answer = self.screen.decision(await self._ask() if self._ask is not None else None)
            except KeyboardInterrupt:  # Ctrl+C at the question ends the turn
                await self.cancel()
                continue
            name, args = "deny", {"approval_id": data["approval_id"]}
            if answer != "deny":
                name, args["scope"] = "approve", answer
            await self._send("command", {"name": name, "args": args})

    def _answer(self, reply_to: str | None, reply: dict[str, Any]) -> None:
        if reply.get("turn_id") and self._end is not None:
            self.turn_id = reply["turn_id"]  # before its first event is read
        waiting = self._replies.pop(reply_to or "", None)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)
        elif "code" in reply:
            self.screen.error(reply["message"])

    async def _request(self, msg_type: str, payload: dict[str, Any]) -> dict[str, Any]:
        if self._broken is not None:
            raise self._broken
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        msg_id = new_id("msg")
        self._replies[msg_id] = future
        await self._send(msg_type, payload, msg_id=msg_id)
        return await future

    async def _send(self, msg_type: str, payload: dict[str, Any], *, msg_id: str | None = None) -> None:
        await self._link.send({"msg_id": msg_id or new_id("msg"), "msg_type": msg_type, "payload": payload})


def readable(text: str) -> str:
    """What was typed: a character that came in two halves is whole, what is no character becomes U+FFFD.

    A Windows console gives an emoji as two surrogates, and bytes that are not UTF-8 arrive as lone ones.
    """
    return plain_text(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


async def _talk(conversation: Conversation, read_line: ReadLine) -> int:
    """Read lines until the user leaves. Ctrl+C ends the turn first and the program next."""
    failed = False
    while True:
        try:
            line = await read_line()
        except KeyboardInterrupt:
            return 130
        if line is None or line.strip().lower() in LEAVE:
            return 1 if failed and not sys.stdin.isatty() else 0
        if not (line := readable(line)).strip():
            continue
        try:
            command = read_command(line.strip())
            if command is not None:
                result = await conversation.command(command.name, command.args)
                conversation.session_id = result.get("session_id") or conversation.session_id
                conversation.screen.result(command.name, result)
                continue
            end = await interruptible(conversation, line[1:] if line.startswith("//") else line)
            failed = end["name"] == "turn.failed"
            if failed:
                conversation.screen.error(end["data"]["message"])
        except ProtocolError as error:
            failed = True
            conversation.screen.error(str(error))


def _prompt() -> ReadLine:
    """Lines from a person at a terminal, with history and editing."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession("› ")

    async def read() -> str | None:
        try:
            return await session.prompt_async()
        except EOFError:
            return None

    return read


async def _read_line() -> str | None:
    """Lines from a pipe."""
    line = await asyncio.to_thread(sys.stdin.readline)
    return line.rstrip("\n") if line else None
