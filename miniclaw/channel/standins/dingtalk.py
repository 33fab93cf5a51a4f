"""A stand-in for DingTalk: session webhooks with their size limit, and files."""

from __future__ import annotations

import itertools
import json
import secrets
from typing import Any, Final

from aiohttp import web

from miniclaw.channel.platforms.dingtalk import sign
from miniclaw.channel.standins.base import Event, Fault, Shown, Standin
from miniclaw.channel_settings import DingTalkAccount

__all__ = ["DingTalkStandin", "posted"]

LIMIT: Final = 20_000


class DingTalkStandin(Standin):
    """DingTalk, for one robot.

    Attributes:
        files: what people sent, by download code.
    """

    def __init__(self, *, secret: str) -> None:
        super().__init__()
        self._secret = secret
        self._numbers = itertools.count(1)
        self._token = secrets.token_hex(8)
        self.files: dict[str, bytes] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/robot/sendBySession", self._send),
            web.post("/v1.0/oauth2/accessToken", self._token_of),
            web.post("/v1.0/robot/messageFiles/download", self._place_of),
            web.get("/files/{code}", self._file),
        ]

    async def _send(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body: dict[str, Any] = json.loads(raw)
        self.calls.append(("send", body))
        self.news()
        fault = self.fault_of("send")
        if fault is not None and not fault.stored:
            return await self._failed(request, fault)
        if len(raw) > LIMIT or not body["markdown"]["title"] or not body["markdown"]["text"]:
            return web.json_response({"errcode": 460101, "errmsg": "message too long or empty"})
        session, number = request.query["session"], f"msg{next(self._numbers)}"
        self.show(Shown(number, session, None, body["markdown"]["text"], raw=body))
        return (
            web.json_response({"errcode": 0, "errmsg": "ok"})
            if fault is None
            else await self._failed(request, fault)
        )

    async def _failed(self, request: web.Request, fault: Fault) -> web.Response:
        if fault.kind == "error":
            return web.json_response({"errcode": fault.value, "errmsg": "injected"})
        return await self.fail(request, fault)

    async def _token_of(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(("token", body))
        if body.get("appSecret") != self._secret:
            return web.json_response({"code": "invalidClientIdOrSecret"}, status=400)
        return web.json_response({"accessToken": self._token, "expireIn": 7200})

    async def _place_of(self, request: web.Request) -> web.Response:
        if request.headers.get("x-acs-dingtalk-access-token") != self._token:
            return web.json_response({"code": "InvalidAuthentication"}, status=401)
        return web.json_response(
            {"downloadUrl": f"{self.url}/files/{(await request.json())['downloadCode']}"}
        )

    async def _file(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["code"]])


def posted(settings: DingTalkAccount, message: dict[str, Any], *, now: float) -> Event:
    """Any message as DingTalk posts it."""
    assert settings.app_secret is not None
    moment = f"{now * 1000:.0f}"
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "timestamp": moment,
        "sign": sign(settings.app_secret.get_secret_value(), moment),
    }
    body = json.dumps(message).encode()
    return Event(path="dingtalk", headers=headers, body=body)
