"""One terminal's conversation with a gateway: lines in, frames out, events onto the screen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from miniclaw.cli.link import Link
from miniclaw.cli.local import LOCAL, needs_yes, run_local
from miniclaw.cli.screen import Screen, State
from miniclaw.errors import ProtocolError
from miniclaw.gateway.command_table import COMMANDS, read_command
from miniclaw.gateway.protocol import TERMINAL_EVENTS, new_id

__all__ = ["Conversation", "ReadLine"]

ReadLine = Callable[[], Awaitable[str | None]]
"""Reads a line of the user; `None` at the end of input."""
PHASES = {"turn.started": "running", "turn.snapshot": "running", "approval.resolved": "running"}


class Conversation:
    """One terminal's conversation: sends lines, waits for ends, answers approvals.

    Args:
        link: to the gateway.
        screen: what is shown.
        allow: tools that are approved without asking.
        state: is kept true.
        ask: reads a person's answer to a question; `None` = nobody is there.
    """

    def __init__(
        self, link: Link, screen: Screen, allow: list[str], state: State, *, ask: ReadLine | None
    ) -> None:
        self.screen = screen
        self.state = state
        self.turn_id: str | None = None
        self.entered: str | None = None
        """The turn that ran in a session when it was entered, until `say(None)` goes on with it."""
        self._link = link
        self._allow = frozenset(allow)
        self._ask = ask
        self._broken: BaseException | None = None
        self._replies: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._end: asyncio.Future[dict[str, Any]] | None = None
        self._approvals: asyncio.Queue[dict[str, Any]] = asyncio.Queue(64)
        self._unanswered: set[str] = set()
        self._asked = ""
        self._typing: asyncio.Task[str | None] | None = None

    @property
    def session_id(self) -> str | None:
        """The session that is talked in, once there is one."""
        return self.state.session_id

    @session_id.setter
    def session_id(self, value: str | None) -> None:
        self.state.session_id = value

    async def introduce(self, home: Path, gateway: str | None) -> list[str]:
        """Show who is there and with what; returns what the person said before in this session.

        Args:
            home: what places that the gateway tells are relative to.
            gateway: the URL of a gateway that is another process.
        """
        told = await self.command("about")
        self.state.model = told["model"]
        if gateway is not None:
            self.state.workspace_root = Path(told["workspace"]) if told["workspace"] else None
        tools = (await self.command("tools"))["tools"]
        self.screen.banner(told, self.state, home, len(tools), gateway)
        if self.session_id is None:
            return []
        found = await self.command("history", {"session_id": self.session_id, "limit": 200})
        return [m["content"] for m in found["messages"] if m["role"] == "user" and m["content"]]

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
            found = await self.command("resume", {"session_id": session_id})
            self.session_id, self.entered = found["session_id"], found["turn_id"]

    def reader_ended(self, reader: asyncio.Task[None]) -> None:
        """Whoever waits for an answer learns why none will come, such as an output that is closed."""
        if reader.cancelled() or (error := reader.exception()) is None:
            return
        self._broken = error
        for waiting in [*self._replies.values(), self._end]:
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)

    async def in_session(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """Send a command; one about the model or skills of a session makes it, where nothing was said yet."""
        if self.session_id is None and (name == "model" or (args and name == "skills")):
            self.session_id = (await self.command("new"))["session_id"]
        return await self.command(name, args)

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

    async def say(self, text: str | None) -> dict[str, Any]:
        """Send a text, or go on with the turn `entered`, and return the payload of the turn's end.

        Raises:
            ProtocolError: the gateway refused it.
        """
        self._end = asyncio.get_running_loop().create_future()
        self._enter("running")
        try:
            await (self._take_up() if text is None else self._send_text(text))
            return await self._until(self._end)
        finally:
            self._unanswered.clear()
            await self._stop_typing()
            self._enter("idle")
            self.turn_id = self._end = None

    async def _take_up(self) -> None:
        turn_id, self.entered = self.entered, None
        await self.command("ping")  # before its answer what came with the first look is passed over
        self.turn_id = turn_id
        await self.command("resume", {"session_id": self.session_id, "turn_id": turn_id})

    async def _send_text(self, text: str) -> None:
        self.entered = None
        payload = {"text": text, **({"session_id": self.session_id} if self.session_id else {})}
        reply = await self._request("text", payload)
        if "code" in reply:
            raise ProtocolError(reply["code"], reply["message"])
        self.session_id = reply["session_id"]

    async def _until(self, ended: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        asking = asyncio.get_running_loop().create_task(self._ask_person())
        asking.add_done_callback(self.reader_ended)
        try:
            end = await ended
            self.state.count(end["data"].get("usage") or {})
            return end
        finally:
            asking.cancel()

    def _enter(self, phase: str) -> None:
        if phase != self.state.phase:
            self.state.phase = phase
            self.screen.show_state(self.state)

    async def carry_out(self, line: str) -> bool:
        """Carry out a line that is a command; whether it is one.

        Raises:
            ConfigError: it cannot be done.
            ProtocolError: the gateway refused it.
        """
        command = read_command(line)
        if command is not None and (question := needs_yes(command)) and self._ask is not None:
            self.screen.confirm(*question)
            if self.screen.decision(await self._typed()) != "once":
                return True
        shown = await run_local(self, line)
        if shown is not None:
            self.screen.note(shown)
            return True
        if command is None:
            return False
        if COMMANDS[command.name].queued:  # the model may be at work
            self._enter("running")
        try:
            result = await self.in_session(command.name, command.args)
        finally:
            self._enter("idle")
        self.session_id = result.get("session_id") or self.session_id
        if command.name == "resume":
            self.entered = result["turn_id"]
        if command.name == "model":
            self.state.model = str(result.get("model") or self.state.model)
        if command.name == "help":
            result["commands"] += [{"name": n, "about": a} for n, a in LOCAL.items()]
        self.screen.result(command.name, result)
        if command.name == "stats":
            self.screen.note(self.state.line())
        return True

    async def cancel(self) -> None:
        """Stop the running turn."""
        if self.turn_id is not None:
            args = {"turn_id": self.turn_id}
            await self._send("command", {"name": "cancel", "args": args})

    async def _on_event(self, payload: dict[str, Any]) -> None:
        name, data = payload["name"], payload["data"]
        if name == "approval.resolved":
            self._unanswered.discard(data["approval_id"])
        if self._asked not in self._unanswered or name in TERMINAL_EVENTS:
            settled = await self._stop_typing()
            if settled and name == "approval.resolved":
                self.screen.settled(data["decision"])
        self.screen.show_event(payload)
        asked = data if name == "approval.requested" else data.get("approval")  # a snapshot has it
        if asked is not None:
            self._enter("waiting_approval")
            await self._on_approval(asked)
        elif name != "approval.resolved" or not self._unanswered:
            self._enter(PHASES.get(name, self.state.phase))
        if name in TERMINAL_EVENTS and self._end is not None and not self._end.done():
            self._end.set_result(payload)

    async def _on_approval(self, data: dict[str, Any]) -> None:
        if data["tool"] in self._allow:
            await self._send("command", {"name": "approve", "args": {"approval_id": data["approval_id"]}})
        elif self._ask is None:
            args = {"approval_id": data["approval_id"], "unattended": True}
            await self._send("command", {"name": "deny", "args": args})
        elif not self._approvals.full():
            self._unanswered.add(data["approval_id"])
            self._approvals.put_nowait(data)

    async def _ask_person(self) -> None:
        """Put questions to the person, one after the other, while the turn waits."""
        while True:
            data = await self._approvals.get()
            self._asked = data["approval_id"]
            if self._asked in self._unanswered:
                self.screen.question(data)
            while self._asked in self._unanswered:
                self._typing = asyncio.get_running_loop().create_task(self._typed())
                await asyncio.wait([self._typing])
                if self._typing.cancelled():
                    break
                decision = await self._decision(self._typing.result(), data)
                if decision is None:
                    self.screen.choices(data)
                    continue
                self._unanswered.discard(self._asked)
                if decision == "cancel":
                    await self.cancel()
                elif decision != "filled":
                    name, scope = ("deny", {}) if decision == "deny" else ("approve", {"scope": decision})
                    await self._send("command", {"name": name, "args": {"approval_id": self._asked, **scope}})

    async def _decision(self, typed: str | None, data: dict[str, Any]) -> str | None:
        """What an answer means; a form is `filled` at once, and `None` where that does not fit."""
        if (answer := self.screen.filled(typed, data)) is None:
            return self.screen.decision(typed, data)
        args = {"approval_id": self._asked, "answer": answer}
        reply = await self._request("command", {"name": "approve", "args": args})
        if "code" in reply:
            self.screen.error(reply["message"])
        return "filled" if reply.get("code") in (None, "approval_not_found") else None

    async def _typed(self) -> str | None:
        """What a person types at a question; Ctrl+C there is `/cancel`, which a task of its own could not raise."""
        assert self._ask is not None
        try:
            return await self._ask()
        except KeyboardInterrupt:
            return "/cancel"

    async def _stop_typing(self) -> bool:
        """Take the terminal back from a question that nobody needs to answer any more; whether there was one."""
        if self._typing is None or self._typing.done():
            return False
        self._typing.cancel()
        await asyncio.wait([self._typing])
        return self._typing.cancelled()

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
