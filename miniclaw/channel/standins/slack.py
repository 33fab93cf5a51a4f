"""A stand-in for Slack's Web API, with its rules on tokens, threads, streams and lengths."""

from __future__ import annotations

import itertools
import json
import secrets
from typing import Any, Final

from aiohttp import web

from miniclaw.channel.platforms.slack import sign
from miniclaw.channel.standins.base import Event, Fault, Shown, Standin
from miniclaw.channel_settings import SlackAccount
from miniclaw.config import Settings

__all__ = ["SlackStandin", "event_of", "standin_of"]

LIMIT: Final = 12_000
FIRST_TS: Final = 1_767_230_000


class SlackStandin(Standin):
    """Slack, for one workspace; `token` is the only one that it takes."""

    def __init__(self, *, token: str = "xoxb-test", bot_user_id: str = "U0MINICLAW1") -> None:
        super().__init__()
        self._token = token
        self._bot_user_id = bot_user_id
        self._numbers = itertools.count(1)
        self.streams = True
        """Whether the workspace takes streams."""
        self.statuses: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/hooks/{name}", self._hook),
            web.get("/files/{name}", self._file),
            web.post("/{method}", self._method),
            web.get("/{method}", self._method),
        ]

    async def _method(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        is_json = request.content_type == "application/json"
        sent = await request.json() if is_json else dict(await request.post())
        body: dict[str, Any] = {**request.query, **sent}
        self.calls.append((method, body))
        self.news()
        fault = self.fault_of(method)
        if fault is not None and not fault.stored:
            return await self._failed(request, fault)
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            return _error("invalid_auth")
        answer = self._answer(method, body)
        if fault is not None:
            return await self._failed(request, fault)
        return web.json_response(
            {"ok": True, **answer} if isinstance(answer, dict) else {"ok": False, "error": answer}
        )

    async def _failed(self, request: web.Request, fault: Fault) -> web.Response:
        return _error(str(fault.value)) if fault.kind == "error" else await self.fail(request, fault)

    def _answer(self, method: str, body: dict[str, Any]) -> dict[str, Any] | str:
        """What a method gives, or the code of its error."""
        text = str(body.get("markdown_text") or "")
        if len(text) > LIMIT:
            return "msg_too_long"
        match method:
            case "auth.test":
                return {"user_id": self._bot_user_id, "bot_id": "B0MINICLAW1", "team_id": "T0ACMETEAM"}
            case "assistant.threads.setStatus":
                self.statuses.append(body)
                return {} if body.get("thread_ts") else "invalid_thread_ts"
            case "chat.postMessage":
                return self._post(body, is_open=False)
            case "chat.startStream":
                if not self.streams:
                    return "channel_type_not_supported"
                needed = ("thread_ts", "recipient_team_id", "recipient_user_id")
                return (
                    self._post(body, is_open=True)
                    if all(body.get(name) for name in needed)
                    else "invalid_arguments"
                )
            case "conversations.replies" | "conversations.history":
                place = (str(body.get("channel")), body.get("ts"))
                found = [one for one in self.shown if (one.conversation, one.thread) == place]
                return {"messages": [self._as_listed(one) for one in found]}
        return self._change(method, body, text)

    def _as_listed(self, one: Shown) -> dict[str, Any]:
        state = {"streaming_state": "in_progress"} if one.is_open else {}
        return {"ts": one.id, "user": self._bot_user_id, "text": one.text, **state, **one.raw}

    def _post(self, body: dict[str, Any], *, is_open: bool) -> dict[str, Any] | str:
        text = body.get("markdown_text") or _text_of(body)
        if not text:
            return "no_text"
        ts = f"{FIRST_TS}.{next(self._numbers):06}"
        raw: dict[str, Any] = {name: body[name] for name in ("metadata", "blocks") if name in body}
        self.show(Shown(ts, str(body.get("channel")), body.get("thread_ts"), str(text), is_open, raw))
        return {"channel": body.get("channel"), "ts": ts}

    def _change(self, method: str, body: dict[str, Any], text: str) -> dict[str, Any] | str:
        message = next((one for one in self.shown if one.id == body.get("ts")), None)
        if message is None or message.conversation != body.get("channel"):
            return "message_not_found"
        match method:
            case "chat.appendStream" | "chat.stopStream":
                if not message.is_open:
                    return "message_not_in_streaming_state"
                message.text += text
                message.is_open = method == "chat.appendStream"
                message.raw.update({"metadata": body["metadata"]} if "metadata" in body else {})
            case "chat.update":
                if message.is_open:
                    return "streaming_state_conflict"
                message.text = text or _text_of(body)
                message.raw["blocks"] = body.get("blocks")
                message.raw["metadata"] = body.get("metadata", message.raw.get("metadata"))
            case _:
                return "unknown_method"
        self.show(message)
        return {"channel": message.conversation, "ts": message.id}

    async def _hook(self, request: web.Request) -> web.Response:
        """A response URL: five posts at most, as Slack allows."""
        body = await request.json()
        self.calls.append(("hook", body))
        fault = self.fault_of("hook")
        if fault is not None and not fault.stored:
            return await self._failed(request, fault)
        name = request.match_info["name"]
        if sum(one.conversation == f"hook:{name}" for one in self.shown) >= 5:
            return web.Response(status=404, text="used_url")
        self.show(Shown(f"hook{next(self._numbers)}", f"hook:{name}", None, _text_of(body)))
        return web.Response(text="ok") if fault is None else await self._failed(request, fault)

    async def _file(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            return web.Response(
                text="<html>sign in</html>", content_type="text/html", status=302, headers={"Location": "/"}
            )
        return web.Response(body=self.files[request.match_info["name"]])


def _text_of(body: dict[str, Any]) -> str:
    blocks = body.get("blocks") or ()
    return next(
        (str(one["text"]) for one in blocks if one.get("type") == "markdown"), str(body.get("text") or "")
    )


def _error(code: str) -> web.Response:
    return web.json_response({"ok": False, "error": code})


def event_of(settings: SlackAccount, text: str, *, now: float) -> Event:
    """A direct message as the Events API posts it."""
    assert settings.signing_secret is not None
    ts = f"{now:.6f}"
    body = json.dumps(
        {
            "type": "event_callback",
            "team_id": "T0SIMULATED",
            "event_id": f"Ev{secrets.token_hex(6).upper()}",
            "event_time": int(now),
            "event": {
                "type": "message",
                "user": "U0SIMULATED",
                "text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
                "channel": "D0SIMULATED",
                "channel_type": "im",
                "ts": ts,
            },
        }
    ).encode()
    moment = str(int(now))
    headers = {
        "Content-Type": "application/json",
        "X-Slack-Request-Timestamp": moment,
        "X-Slack-Signature": sign(settings.signing_secret.get_secret_value(), moment, body),
    }
    return Event(path="slack/events", headers=headers, body=body)


def standin_of(settings: Settings) -> SlackStandin:
    """The stand-in that fits these settings."""
    return SlackStandin(
        token=settings.channels.slack.bot_token.get_secret_value()
        if settings.channels.slack.bot_token
        else ""
    )
