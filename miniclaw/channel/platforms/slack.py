"""Slack: Events API, slash commands and buttons in; the Web API out.

Rules: https://docs.slack.dev/authentication/verifying-requests-from-slack,
https://docs.slack.dev/apis/events-api, https://docs.slack.dev/interactivity.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from miniclaw.channel.base import HeldHandles, none_held
from miniclaw.channel.markup import split_markdown
from miniclaw.channel.platforms.slack_api import SlackApi
from miniclaw.channel.platforms.slack_markup import decode, mentions, without_pings
from miniclaw.channel.platforms.spoken import spoken
from miniclaw.channel.webhook import Answer, WebhookRequest
from miniclaw.channel_settings import SlackAccount
from miniclaw.errors import DeliveryError, ProtocolError
from miniclaw.gateway.protocol import (
    CommandPayload,
    FileRef,
    Inbound,
    MessageType,
    Receipt,
    ReplyTarget,
    now,
)

__all__ = ["SlackPlatform", "sign"]

logger = logging.getLogger(__name__)

WINDOW_SECONDS: Final = 300
"""How far a request's time may be from ours, in both directions."""
PART_CHARS: Final = 11_000
"""Of one message; Slack takes 12,000 characters of Markdown."""
SAID: Final = frozenset({None, "file_share", "thread_broadcast", "me_message"})
"""Subtypes of messages that somebody wrote; all others are edits, deletions, joins and other bots."""
KINDS: Final = ("image", "audio", "video")
RESPONSE_SECONDS: Final = 30 * 60.0
"""How long Slack takes answers at a `response_url`: https://docs.slack.dev/interactivity/handling-user-interaction."""


class SlackPlatform(SlackApi):
    """One Slack app in one workspace; what it sends is in `SlackApi`."""

    def __init__(self, settings: SlackAccount, *, held: HeldHandles = none_held, account: str = "") -> None:
        super().__init__(settings, held=held)
        self.name = f"slack/{account}" if account else "slack"
        prefix = f"slack/{account}/" if account else "slack/"
        self.paths: Mapping[str, tuple[str, ...]] = {
            f"{prefix}{kind}": ("POST",) for kind in ("events", "commands", "interactions")
        }

    def verify(self, request: WebhookRequest) -> None:
        """Check time and signature over the raw body."""
        moment = request.headers.get("X-Slack-Request-Timestamp", "")
        given = request.headers.get("X-Slack-Signature", "")
        if not (moment.isascii() and moment.isdigit() and len(moment) <= 12):
            raise ProtocolError("unauthorized", "the timestamp is missing or no number")
        if abs(int(moment) - request.now) > WINDOW_SECONDS:
            raise ProtocolError("unauthorized", "the timestamp is outside the window")
        secret = self._settings.signing_secret
        assert secret is not None
        expected = sign(secret.get_secret_value(), moment, request.body)
        if not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode()):
            raise ProtocolError("unauthorized", "the signature does not match")

    def parse(self, request: WebhookRequest) -> Inbound | Answer:
        """An event, a slash command or a click."""
        try:
            if request.path.endswith("/events"):
                return self._event(_object(request.body))
            form = dict(parse_qsl(request.body.decode(), keep_blank_values=True, strict_parsing=True))
            if form.get("ssl_check"):
                return Answer()
            if request.path.endswith("/commands"):
                return self._command(form, request.now)
            return self._click(_object(form["payload"].encode()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(
                "bad_message", f"the request cannot be read: {type(error).__name__}"
            ) from error

    def answer(self, receipt: Receipt, inbound: Inbound) -> Answer:
        """200 for what was taken or is not for us; 503 when Slack is to try again."""
        return Answer(status=503 if receipt.status == "unavailable" else 200)

    def split(self, text: str) -> list[str]:
        """Parts that fit into a message, in which nothing calls people."""
        return split_markdown(without_pings(text), PART_CHARS)

    def _event(self, body: dict[str, Any]) -> Inbound | Answer:
        if body.get("type") == "url_verification":
            return Answer(text=_sendable(str(body["challenge"])))
        event = body.get("event")
        if body.get("type") != "event_callback" or not isinstance(event, dict):
            return Answer()
        bot = self.bot_user_id or _bot_of(body)
        if event.get("type") not in ("app_mention", "message") or not self._is_said(event, bot):
            return Answer()
        team, channel, ts = str(body["team_id"]), str(event["channel"]), str(event["ts"])
        text, thread = str(event.get("text") or ""), event.get("thread_ts")
        direct = event.get("channel_type") == "im" or channel.startswith("D")
        named = direct or event["type"] == "app_mention" or mentions(text, bot)
        if not named and self._settings.require_mention and thread is None:
            return Answer()
        root = str(thread or ts)
        return spoken(
            self._settings,
            self.name,
            decode(text, bot),
            msg_id=f"slack-{channel}-{ts}",
            account=team,
            sender=str(event["user"]),
            conversation=channel,
            thread=None if direct else root,
            direct=direct,
            dedupe=(f"event:{body['event_id']}", f"msg:{team}:{channel}:{ts}"),
            reply_to=ReplyTarget(
                conversation=channel,
                thread=str(thread) if thread else (None if direct else root),
                message_id=ts,
                account=team,
                sender=str(event["user"]),
            ),
            files=tuple(_file(one) for one in event.get("files") or () if one.get("id")),
            only_known=not named and self._settings.require_mention,
        )

    def _is_said(self, event: dict[str, Any], bot: str) -> bool:
        """Whether a person wrote it: not this bot, not another, and no edit or deletion."""
        if event.get("subtype") not in SAID or event.get("hidden") or event.get("edited"):
            return False
        author = event.get("user")
        return bool(author) and not event.get("bot_id") and author not in (bot, "USLACKBOT")

    def _command(self, form: dict[str, str], moment: float) -> Inbound:
        team, channel, user = form["team_id"], form["channel_id"], form["user_id"]
        text = decode(form.get("text", ""), self.bot_user_id)
        return spoken(
            self._settings,
            self.name,
            text or "/help",
            msg_id=f"slack-{hashlib.sha256(form['trigger_id'].encode()).hexdigest()[:24]}",
            account=team,
            sender=user,
            conversation=channel,
            thread=f"cmd:{user}",
            direct=channel.startswith("D"),
            dedupe=(f"trigger:{form['trigger_id']}",),
            reply_to=ReplyTarget(
                conversation=channel,
                url=form["response_url"],
                account=team,
                sender=user,
                expires_at=moment + RESPONSE_SECONDS,
            ),
        )

    def _click(self, body: dict[str, Any]) -> Inbound | Answer:
        if body.get("type") != "block_actions":
            return Answer()
        action = next((one for one in body["actions"] if one["action_id"].startswith("miniclaw_")), None)
        if action is None:
            return Answer()
        approval_id, _, decision = str(action["value"]).rpartition(":")
        name, args = "deny", {"approval_id": approval_id}
        if decision != "deny":
            name = "approve"
            args["scope"] = decision if decision in ("session", "always") else "once"
        click = f"{body['trigger_id']}:{action['action_ts']}"
        return Inbound(
            msg_id=f"slack-{hashlib.sha256(click.encode()).hexdigest()[:24]}",
            msg_type=MessageType.COMMAND,
            source=f"slack:{body['user']['id']}",
            payload=CommandPayload(name=name, args=args),
            timestamp=now(),
            channel=self.name,
            account=str((body.get("team") or {}).get("id") or body["user"]["team_id"]),
            sender=str(body["user"]["id"]),
            strangers=self._settings.strangers,
        )

    async def fetch_file(self, target: ReplyTarget, file: FileRef, *, max_bytes: int) -> bytes:
        """The file, with the bot's token, from Slack's hosts only."""
        if (file.size or 0) > max_bytes:
            raise DeliveryError(f"the file is larger than {max_bytes} bytes", permanent=True)
        return await self.download(file, max_bytes=min(max_bytes, self._settings.file_bytes))


def sign(secret: str, moment: str, body: bytes) -> str:
    """The signature `v0=…` of a request of that time (seconds since the epoch, as it is sent)."""
    return "v0=" + hmac.digest(secret.encode(), f"v0:{moment}:".encode() + body, hashlib.sha256).hex()


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise TypeError("not a JSON object")
    return found


def _sendable(text: str) -> str:
    """A text that can be sent back; raises `ValueError` for a lone surrogate."""
    return text.encode().decode()


def _bot_of(body: dict[str, Any]) -> str:
    """The bot's user id as the event names it, for as long as nobody else told."""
    found = body.get("authorizations") or [{}]
    return str(found[0].get("user_id") or "") if found[0].get("is_bot") else ""


def _file(raw: dict[str, Any]) -> FileRef:
    mime = str(raw.get("mimetype") or "")
    kind: Any = mime.partition("/")[0]
    return FileRef(
        kind=kind if kind in KINDS else "file",
        id=str(raw["id"]),
        name=str(raw.get("name") or ""),
        mime=mime,
        size=raw.get("size") if isinstance(raw.get("size"), int) else None,
        url=raw.get("url_private_download") or raw.get("url_private"),
    )
