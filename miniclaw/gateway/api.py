"""The HTTP API under `/api/`: the same sessions, memories and approvals that the commands show."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from miniclaw import __version__
from miniclaw.agent.core import Core
from miniclaw.errors import ProtocolError, StorageError
from miniclaw.gateway.commands import Commands
from miniclaw.gateway.dispatcher import Dispatcher
from miniclaw.gateway.http import Route, json_response, read_json, user_of
from miniclaw.gateway.markdown import render_markdown
from miniclaw.gateway.memory_api import MemoryApi
from miniclaw.gateway.pages import MAX_PAGE, message_page
from miniclaw.metrics import CONTENT_TYPE
from miniclaw.observer import Observer
from miniclaw.session.export import to_json, to_markdown
from miniclaw.session.ports import ChecksItself, TurnQueue
from miniclaw.timers import Timers
from miniclaw.tools.exports import tools_view

__all__ = ["Api", "read_json"]

MAX_HTML_PAGE: Final = 200
"""Messages of a rendered page at most."""


class _DecisionBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    decision: Literal["once", "session", "always", "deny"]


class _TitleBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str = Field(max_length=1000)


class _ForkBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    position: int | None = Field(default=None, ge=-1)


class Api:
    """Handlers of `/api/`; each checks that what it shows belongs to the user who asks."""

    def __init__(
        self,
        core: Core,
        commands: Commands,
        mailbox: TurnQueue,
        dispatcher: Dispatcher,
        database: ChecksItself,
        timers: Timers,
        observer: Observer,
    ) -> None:
        self._timers = timers
        self._observer = observer
        self._dispatcher = dispatcher
        self._db = database
        self._c = core
        self._commands = commands
        self._mailbox = mailbox
        self.is_ready = False

    def routes(self) -> list[Route]:
        """All routes of the API but `/api/messages`, which is a channel's."""
        table: list[tuple[str, str, Any]] = [
            ("GET", "/api/status", self.status),
            ("GET", "/api/sessions", self.sessions),
            ("PATCH", "/api/sessions/{id}", self.rename),
            ("DELETE", "/api/sessions/{id}", self.delete_session),
            ("POST", "/api/sessions/{id}/fork", self.fork),
            ("GET", "/api/sessions/{id}/export", self.export),
            ("GET", "/api/sessions/{id}/messages", self.messages),
            *MemoryApi(self._c.memory).table(),
            ("GET", "/api/tools", self.tools),
            ("GET", "/api/mcp", self.mcp),
            ("GET", "/api/skills", self.skills),
            ("GET", "/api/skills/{name}", self.skill),
            ("GET", "/api/models", self.models),
            ("GET", "/api/usage", self.usage),
            ("GET", "/api/timers", self.timers),
            ("DELETE", "/api/timers/{id}", self.cancel_timer),
            ("GET", "/api/approvals", self.approvals),
            ("POST", "/api/approvals/{id}", self.decide),
            ("GET", "/api/deliveries", self.deliveries),
            ("POST", "/api/deliveries/{id}/retry", self.retry_delivery),
            ("POST", "/api/turns/{id}/cancel", self.cancel),
            ("GET", "/metrics", self.metrics),
        ]
        routes = [Route(method=method, path=path, handler=handler) for method, path, handler in table]
        for path, handler in (("/healthz", self.health), ("/readyz", self.ready)):
            routes.append(Route(method="GET", path=path, handler=handler, is_open=True))
        return routes

    async def health(self, request: web.Request) -> web.Response:
        """The process lives."""
        return json_response({"ok": True})

    async def ready(self, request: web.Request) -> web.Response:
        """New messages are taken and can be stored; 503 with the reason if not.

        How the last turn fared with the model and the last answers with their platforms is told beside it:
        these come back by themselves, and another gateway would have the same trouble.
        """
        if not self.is_ready or self._mailbox.is_stopped:
            raise ProtocolError("draining", "This gateway starts or stops; try again in a moment.")
        try:
            await self._db.check()
        except StorageError as error:
            raise ProtocolError("storage_unavailable", str(error)) from error
        seen = {"storage": "ok", "model": self._observer.model, "channels": self._observer.channels}
        return json_response({"ok": True, **seen})

    async def metrics(self, request: web.Request) -> web.Response:
        """Numbers for Prometheus, which hold nothing of what was said; any user's token reads them."""
        return web.Response(text=await self._observer.text(), headers={"Content-Type": CONTENT_TYPE})

    async def status(self, request: web.Request) -> web.Response:
        """Version, model and user, for the page's header."""
        model = self._c.provider.info
        hint = ".env: OPENAI_API_KEY=…  OPENAI_BASE_URL=…  OPENAI_MODEL=…" if model.demo else ""
        return json_response(
            {
                "version": __version__,
                "model": {"name": model.name, "demo": model.demo, "hint": hint},
                "user_id": user_of(request),
            }
        )

    async def sessions(self, request: web.Request) -> web.Response:
        """The user's sessions, the latest first, or the messages that hold `query`."""
        query = request.query.get("query", "")[:200]
        return json_response(await self._commands.sessions.list(user_of(request), query))

    async def rename(self, request: web.Request) -> web.Response:
        """Give a session a title."""
        body: _TitleBody = await read_json(request, _TitleBody)
        actions, session_id = self._commands.sessions, request.match_info["id"]
        return json_response(await actions.rename(user_of(request), session_id, body.title))

    async def delete_session(self, request: web.Request) -> web.Response:
        """Remove a session with everything in it."""
        return json_response(await self._commands.sessions.delete(user_of(request), request.match_info["id"]))

    async def fork(self, request: web.Request) -> web.Response:
        """A new session with the messages of this one up to a position."""
        body: _ForkBody = await read_json(request, _ForkBody)
        actions, session_id = self._commands.sessions, request.match_info["id"]
        return json_response(await actions.fork(user_of(request), session_id, body.position), status=201)

    async def export(self, request: web.Request) -> web.Response:
        """A session as a file, `format=markdown` or `json`."""
        session = await self._commands.sessions.whole(user_of(request), request.match_info["id"])
        kind = request.query.get("format", "markdown")
        if kind not in ("markdown", "json"):
            raise ProtocolError("bad_arguments", "`format` must be markdown or json.")
        write, ending = (to_markdown, "md") if kind == "markdown" else (to_json, "json")
        return web.Response(
            text=await asyncio.to_thread(write, session),
            content_type=f"text/{kind}" if kind == "markdown" else "application/json",
            headers={"Content-Disposition": f'attachment; filename="{session.session_id}.{ending}"'},
        )

    async def messages(self, request: web.Request) -> web.Response:
        """A page of a session's log; with `html=1` rendered too, which costs a thread and not the loop."""
        html = request.query.get("html") == "1"
        limit = _number(request, "limit", 50)
        page = await message_page(
            self._c.sessions,
            request.match_info["id"],
            user_of(request),
            before=_number(request, "before", None),
            limit=min(50 if limit is None else limit, MAX_HTML_PAGE if html else MAX_PAGE),
        )
        if html:
            await asyncio.to_thread(_render, page["messages"])
            await self._add_reports(page["messages"], user_of(request))
        return json_response(page)

    async def _add_reports(self, rows: list[dict[str, Any]], scope: str) -> None:
        """Put what a turn cost and which memories it used to its last message; those that are there in words."""
        for turn_id, row in {row["turn_id"]: row for row in rows}.items():
            turn = self._c.turns.get(turn_id) if turn_id else None
            data = turn.outcome["data"] if turn is not None and turn.outcome is not None else {}
            names = ("usage", "used_memories", "saved_memories")
            row |= {name: data[name] for name in names if data.get(name)}
        ids = {one["memory_id"] for row in rows for one in row.get("used_memories", ())}
        words = await self._c.memory.contents(scope, ids) if ids else {}
        for row in filter(lambda row: row.get("used_memories"), rows):
            used = row["used_memories"]
            row["used_memories"] = [{**m, "content": words.get(m["memory_id"], m["memory_id"])} for m in used]

    async def tools(self, request: web.Request) -> web.Response:
        """The tools."""
        is_admin = self._c.identities.is_admin(user_of(request))
        return json_response(tools_view(self._c.registry, self._c.registry.source, is_admin))

    async def mcp(self, request: web.Request) -> web.Response:
        """The MCP servers and how they are, for admins."""
        is_admin = self._c.identities.is_admin(user_of(request))
        return json_response({"servers": self._c.servers.status() if is_admin else []})

    async def skills(self, request: web.Request) -> web.Response:
        """The skills; with `session_id` which are on there and why its last message suggests one."""
        active, said = list[str](), ""
        if session_id := request.query.get("session_id", ""):
            session = await self._commands.sessions.whole(user_of(request), session_id)
            active = session.metadata.get("skills") or []
            users = (e.message for e in reversed(session.messages) if e.message["role"] == "user")
            said = str(next(users, {}).get("content") or "")
        self._c.skills.reload_if_changed()
        return json_response({"skills": self._c.skills.rows(active, said)})

    async def models(self, request: web.Request) -> web.Response:
        """The model of a session, or of new ones, and those that there are."""
        chosen, provider = None, self._c.provider
        if session_id := request.query.get("session_id", ""):
            session = await self._commands.sessions.whole(user_of(request), session_id)
            chosen = session.metadata.get("model")
        return json_response({"model": chosen or provider.info.name, "models": await provider.models()})

    async def skill(self, request: web.Request) -> web.Response:
        """One skill with its instructions."""
        self._c.skills.reload_if_changed()
        skill = self._c.skills.get(request.match_info["name"])
        if skill is None:
            raise ProtocolError("not_found", "There is no such skill.")
        missing = self._c.skills.missing(skill)
        return json_response({**skill.model_dump(mode="json", exclude={"path"}), "missing": missing})

    async def usage(self, request: web.Request) -> web.Response:
        """Tokens and cost by day and model."""
        return json_response({"usage": await self._c.usage.rows(user_of(request))})

    async def approvals(self, request: web.Request) -> web.Response:
        """The questions that wait for the user."""
        waiting = await self._c.desk.open_for(user_of(request))
        return json_response({"approvals": [approval.to_dict() for approval in waiting]})

    async def decide(self, request: web.Request) -> web.Response:
        """Answer a question."""
        body: _DecisionBody = await read_json(request, _DecisionBody)
        approval = await self._c.desk.decide(request.match_info["id"], user_of(request), body.decision)
        return json_response({"approval_id": approval.approval_id, "decision": body.decision})

    async def timers(self, request: web.Request) -> web.Response:
        """The user's timers, the next one first."""
        return json_response({"timers": [one.to_dict() for one in self._timers.list(user_of(request))]})

    async def cancel_timer(self, request: web.Request) -> web.Response:
        """End a timer."""
        user_id, timer_id = user_of(request), request.match_info["id"]
        await self._timers.cancel(timer_id, user_id, user_id)
        return json_response({"timer_id": timer_id, "cancelled": True})

    async def deliveries(self, request: web.Request) -> web.Response:
        """Answers that did not reach their platform yet, dead letters among them; for an admin everybody's."""
        names = ("key", "turn_id", "channel", "conversation", "state", "attempts", "error")
        rows = [
            {name: getattr(delivery, name) for name in names} | ({} if delivery.n else {"turn_id": ""})
            for delivery in await self._c.outbox.of_user(self._user_or_all(request))
        ]
        return json_response({"deliveries": rows})

    def _user_or_all(self, request: web.Request) -> str | None:
        return None if self._c.identities.is_admin(user := user_of(request)) else user

    async def retry_delivery(self, request: web.Request) -> web.Response:
        """Send a dead letter again."""
        row = await self._c.outbox.revive(request.match_info["id"], self._user_or_all(request))
        if row is None:
            raise ProtocolError("not_found", "There is no such dead letter.")
        self._dispatcher.take_up(row)
        return json_response({"key": row.key, "state": row.state})

    async def cancel(self, request: web.Request) -> web.Response:
        """Stop a turn; it is no error when it has ended."""
        cancelled = await self._commands.cancel(request.match_info["id"], user_of(request))
        return json_response({"cancelled": cancelled})


def _render(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["role"] == "assistant" and row["content"]:
            row["html"] = render_markdown(row["content"])


def _number(request: web.Request, name: str, default: int | None) -> int | None:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise ProtocolError("bad_arguments", f"`{name}` must be a number from 0 on.")
    return int(text)
