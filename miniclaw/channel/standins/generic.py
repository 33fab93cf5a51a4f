"""A sender and receiver of generic webhooks."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

from aiohttp import web

from miniclaw.channel.platforms.generic import decode_key, sign
from miniclaw.channel.standins.base import Event, Shown, Standin
from miniclaw.errors import ConfigError

if TYPE_CHECKING:
    from miniclaw.channel_settings import GenericWebhookSettings
    from miniclaw.config import Settings

__all__ = ["GenericStandin", "event_of", "standin_of"]


class GenericStandin(Standin):
    """Whoever asked: takes the replies."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/reply", self._reply)]

    async def _reply(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(("reply", body))
        fault = self.fault_of("reply")
        if fault is not None and not fault.stored:
            return await self.fail(request, fault)
        self.show(Shown(request.headers["webhook-id"], "reply", body.get("session"), str(body["text"])))
        return web.Response(status=200) if fault is None else await self.fail(request, fault)


def event_of(
    settings: GenericWebhookSettings, text: str, *, now: float, reply_url: str | None = None
) -> Event:
    """A text, signed as Standard Webhooks say."""
    if settings.secret is None:
        raise ConfigError("Only a generic webhook with GENERIC_WEBHOOK_SECRET can be simulated.")
    fields = {settings.text_field: text, "reply_url": reply_url}
    body = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
    key, message_id, moment = (
        decode_key(settings.secret.get_secret_value().split()[0]),
        f"msg_{secrets.token_hex(8)}",
        str(int(now)),
    )
    headers = {
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": moment,
        "webhook-signature": sign(key, message_id, moment, body),
    }
    return Event(path="in", headers=headers, body=body)


def standin_of(settings: Settings) -> GenericStandin:
    """The stand-in that fits these settings."""
    return GenericStandin()
