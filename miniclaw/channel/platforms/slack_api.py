"""What we ask of Slack: post, stream, update, questions with buttons, files.

Methods: https://docs.slack.dev/reference/methods. Slack reports most failures as 200 with `ok: false`.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any, Final
from urllib.parse import urlsplit

from miniclaw.channel.base import HeldHandles, KeepsHandle, none_held
from miniclaw.channel.platforms.client import MARK, PlatformClient, is_on
from miniclaw.channel.platforms.slack_markup import without_pings
from miniclaw.channel.questions import question_markdown
from miniclaw.channel.webhook import delivery_error
from miniclaw.channel_settings import SlackAccount
from miniclaw.errors import DeliveryError
from miniclaw.gateway.protocol import FileRef, ReplyTarget

__all__ = ["SlackApi"]

logger = logging.getLogger(__name__)
EVENT: Final = "miniclaw_reply"
"""The type of the metadata that carries a delivery's key."""
STREAMED: Final = "stream:"
"""Begins the handle of a message of `chat.startStream`; others are updated as a whole."""
UPDATE_LIMIT: Final = 11_000
STREAMS: Final = 1_000
"""So many streams are known as ours; beyond that the oldest one, which Slack has long ended, is forgotten."""
RATE_LIMIT_SECONDS: Final = 30.0
"""Before another try, where Slack says that it is too much and not for how long."""
START_SECONDS: Final = 5.0
"""How long Slack may take at start to say who the bot is."""
HOOK_HOSTS: Final = ("hooks.slack.com",)
UNSURE: Final = frozenset({"internal_error", "fatal_error", "request_timeout", "service_unavailable"})
"""Errors after which nobody knows whether the message was stored."""
AGAIN: Final = frozenset({"ratelimited", "rate_limited", "accesslimited", "team_added_to_org"})


class SlackApi:
    """The sending half of Slack's platform."""

    stream_seconds = 1.0

    def __init__(self, settings: SlackAccount, *, held: HeldHandles = none_held) -> None:
        self._settings = settings
        self._held = held
        self._client = PlatformClient()
        self._shown: dict[str, str | None] = {}
        """What each stream shows that may not have ended, by handle; `None` = not known. Slack only appends."""
        self._found: dict[str, str] = {}
        """The handles of what earlier tries had shown, by the key of the delivery, until it is through."""
        self.bot_user_id = settings.bot_user_id

    async def start(self) -> None:
        """Ask who the bot is, where the settings do not say; each event names it too."""
        if self.bot_user_id or self._settings.bot_token is None:
            return
        try:
            async with asyncio.timeout(START_SECONDS):
                self.bot_user_id = str((await self._call("auth.test", {}))["user_id"])
        except (DeliveryError, KeyError, TimeoutError) as error:
            logger.warning("Slack does not say who the bot is (%s); events are asked instead", error)

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.close()

    async def deliver(
        self, target: ReplyTarget, text: str, *, key: str, repeat: bool, handle: str | None = None
    ) -> str | None:
        """Post one part, or replace what was streamed by it; see `Delivers.deliver`."""
        if handle is None and not text.strip():
            return None  # blanks between parts, or a command about which there is nothing to say
        marked = MARK + text if repeat else text
        if handle is None and repeat:
            handle = self._found.get(key) or await self._find(target, key, text)
        if handle is not None:
            _keep(self._found, key, handle)
            try:
                await self._finish(handle, text, key)  # it may be the beginning of a streamed answer
            except DeliveryError as error:
                if not str(error).endswith(": message_not_found"):
                    raise
                self._shown.pop(handle, None)
                again = await self._find(target, key) if repeat else None
                handle = again or await self._post(target, marked, key, f"{key}.anew")  # somebody deleted it
            del self._found[key]
            return handle
        if target.url is not None and await self._respond(target.url, marked):
            return None
        return await self._post(target, marked, key, key)

    async def begin_stream(
        self, target: ReplyTarget, text: str, *, key: str, known: KeepsHandle | None = None
    ) -> str | None:
        """A stream in a thread; elsewhere a message that is updated.

        A stream carries nothing of ours before its end, so where Slack did not say whether it began it is known
        again by its text alone; see `_look`.
        """
        if target.url is not None or not self._settings.stream:
            return None
        text = without_pings(text)[:UPDATE_LIMIT]
        if target.thread is None:
            return await self._post(target, text, key, f"{key}.begin")
        body = {
            "channel": target.conversation,
            "thread_ts": target.thread,
            "markdown_text": text,
            "recipient_team_id": target.account,
            "recipient_user_id": target.sender,
        }
        try:
            begun = await self._call("chat.startStream", body)
            handle = f"{STREAMED}{target.conversation}:{begun['ts']}"
        except DeliveryError as error:
            if error.permanent:  # a workspace or channel that takes no streams
                return await self._post(target, text, key, f"{key}.begin")
            if not error.unknown:
                raise
            try:
                found = await self._look(target, key, text)
            except DeliveryError as looked:
                raise DeliveryError(f"{error}; {looked}", unknown=True) from looked
            if found is None:
                raise DeliveryError(f"{error}, and no stream is there") from error
            handle = found
        _keep(self._shown, handle, text)
        return handle

    async def update_stream(self, target: ReplyTarget, handle: str, text: str) -> None:
        """Append what is new, or show the whole text anew."""
        text = without_pings(text)[:UPDATE_LIMIT]
        channel, ts = _place(handle)
        if not handle.startswith(STREAMED):
            await self._call("chat.update", {"channel": channel, "ts": ts, "markdown_text": text})
            return
        shown = self._shown.get(handle)
        if shown is None or not text.startswith(shown) or text == shown:
            return  # an earlier process began it, or text was withdrawn: the end puts it right
        body = {"channel": channel, "ts": ts, "markdown_text": text[len(shown) :]}
        self._shown[handle] = None  # nobody knows what is shown until Slack has said yes
        try:
            await self._call("chat.appendStream", body)
        except DeliveryError as error:
            if not (error.unknown or error.permanent):
                self._shown[handle] = shown
            raise
        self._shown[handle] = text

    async def show_working(self, target: ReplyTarget) -> None:
        """A status in the thread; Slack takes it away with the answer, or after two minutes."""
        if target.thread is not None and target.url is None and self._settings.stream:
            body = {"channel_id": target.conversation, "thread_ts": target.thread, "status": "is thinking…"}
            await self._call("assistant.threads.setStatus", body)

    async def ask_approval(
        self, target: ReplyTarget, question: dict[str, Any], *, repeat: bool
    ) -> str | None:
        """The question with buttons; one that may be there already is looked for, as an answer is."""
        key = str(question["approval_id"])
        if repeat and (found := await self._find(target, key)) is not None:
            return found
        about = (MARK if repeat else "") + without_pings(question_markdown(question, sign="!"))
        buttons = [
            _button(label, f"miniclaw_{value}", f"{key}:{value}", style)
            for label, value, style in (
                ("✓ 同意 Approve", "approve", "primary"),
                ("本会话都同意 This session", "session", None),
                ("✗ 拒绝 Deny", "deny", "danger"),
            )
        ]
        blocks = [{"type": "markdown", "text": about}, {"type": "actions", "elements": buttons}]
        body = {"text": about[:1000], "blocks": blocks, "metadata": _metadata(key)}
        try:
            return await self._say(target, body)
        except DeliveryError as error:
            # A slash command works where the bot may not post; the commands below the question do as well.
            if not error.permanent or target.url is None or not await self._respond(target.url, about):
                raise
            return ""

    async def close_approval(
        self, target: ReplyTarget, handle: str, question: dict[str, Any], decision: str
    ) -> None:
        """The question with its answer in the place of the buttons."""
        channel, ts = _place(handle)
        about = without_pings(f"{question_markdown(question)}\n\n→ **{decision}**")
        shown = {"text": about[:1000], "blocks": [{"type": "markdown", "text": about}]}
        await self._call("chat.update", {"channel": channel, "ts": ts, **shown})

    async def download(self, file: FileRef, *, max_bytes: int) -> bytes:
        """A file of a message; the token goes to the hosts of the settings only."""
        if file.url is None or not is_on(file.url, self._settings.file_hosts):
            raise DeliveryError("the file is not on one of Slack's hosts", permanent=True)
        return await self._client.download(file.url, headers=self._headers(), max_bytes=max_bytes)

    async def _post(self, target: ReplyTarget, text: str, key: str, message: str) -> str:
        """Post a text of a delivery, to be found by its key; no two that differ are the same `message`."""
        body = {
            "markdown_text": text,
            "unfurl_links": False,
            "client_msg_id": str(uuid.uuid5(uuid.NAMESPACE_OID, message)),
            "metadata": _metadata(key),
        }
        return await self._say(target, body)

    async def _say(self, target: ReplyTarget, body: dict[str, Any]) -> str:
        """The handle of what is posted, into the channel itself where its thread is gone."""
        sent = {"channel": target.conversation, "thread_ts": target.thread, **body}
        try:
            posted = await self._call("chat.postMessage", sent)
        except DeliveryError as error:
            if not _is_thread_gone(error):
                raise
            logger.info("the thread %s is gone; the reply goes into the channel", target.thread)
            posted = await self._call("chat.postMessage", {**sent, "thread_ts": None})
        return f"{posted['channel']}:{posted['ts']}"

    async def _finish(self, handle: str, text: str, key: str) -> None:
        """End a stream and let the message say exactly `text`, to be found by this key from now on."""
        channel, ts = _place(handle)
        shown = self._shown.get(handle)
        if handle.startswith(STREAMED):
            self._shown[handle] = None
            try:
                stop = {"channel": channel, "ts": ts, "metadata": _metadata(key)}
                await self._call("chat.stopStream", stop)
            except DeliveryError as error:
                if not error.permanent:
                    raise
                logger.info("the stream %s has ended already: %s", handle, error)
        if shown != text:
            body = {"channel": channel, "ts": ts, "markdown_text": text, "metadata": _metadata(key)}
            await self._call("chat.update", body)
        self._shown.pop(handle, None)  # not before: it would be taken for a stream of another turn

    async def _find(self, target: ReplyTarget, key: str, text: str = "") -> str | None:
        """The same as `_look`; `None` also where Slack does not let us look."""
        try:
            return await self._look(target, key, text)
        except DeliveryError as error:
            logger.info("Slack does not let us look for %s: %s", key, error)
            return None

    async def _look(self, target: ReplyTarget, key: str, text: str) -> str | None:
        """The message that an earlier try of this delivery posted, or the stream that one began with this text.

        Raises:
            DeliveryError: nobody knows, also where a stream of ours is open of which we know nothing.
        """
        method, body = "conversations.history", {"channel": target.conversation}
        if target.thread is not None:
            method, body = "conversations.replies", {**body, "ts": target.thread}
        # Only what came behind the question: a long thread is listed from its beginning.
        since = {"oldest": target.message_id, "limit": 200, "include_all_metadata": True}
        try:
            found = await self._call(method, {**body, **since}, form=True)
        except DeliveryError as error:
            if target.thread is None or not _is_thread_gone(error):
                raise
            return await self._look(target.model_copy(update={"thread": None}), key, text)
        # Only in a thread there are streams, and one whose handle is known is that of another answer.
        others = {*self._shown, *await self._held()} if target.thread is not None else None
        begun, is_other = None, False
        for message in found.get("messages") or ():
            handle, metadata = f"{target.conversation}:{message['ts']}", message.get("metadata") or {}
            if metadata.get("event_type") == EVENT:
                if metadata.get("event_payload", {}).get("key") == key:
                    return handle
            elif others is not None and f"{STREAMED}{handle}" not in others and self._is_open(message):
                if _begins(text, str(message.get("text") or "")):
                    begun = f"{STREAMED}{handle}"
                else:
                    is_other = True
        if text and is_other and begun is None:
            raise DeliveryError("a stream is there that may be this one", unknown=True)
        return begun

    def _is_open(self, message: dict[str, Any]) -> bool:
        """Whether it may be a stream of ours that has no end yet; an ended one carries a key."""
        return message.get("user") == self.bot_user_id and message.get("streaming_state") != "completed"

    async def _respond(self, url: str, text: str) -> bool:
        """Answer a slash command at its own URL; `False` when that is used up, so that it is posted instead."""
        if not is_on(url, (*HOOK_HOSTS, urlsplit(self._settings.api_base).netloc)):
            return False
        body = {
            "response_type": "in_channel",
            "text": text[:3000],
            "blocks": [{"type": "markdown", "text": text}],
        }
        response = await self._client.call("POST", url, json=body)
        if response.status_code in (403, 404, 410):
            return False
        failure = delivery_error(response.status_code, response.headers.get("Retry-After"))
        if failure is not None:
            raise failure
        return True

    def _headers(self) -> dict[str, str]:
        token = self._settings.bot_token
        if token is None:
            raise DeliveryError("SLACK_BOT_TOKEN is not set", permanent=True)
        return {"Authorization": f"Bearer {token.get_secret_value()}"}

    async def _call(self, method: str, body: dict[str, Any], *, form: bool = False) -> dict[str, Any]:
        """Call a method of the Web API.

        Raises:
            DeliveryError: as its `error` says: for good, for now, or not known.
        """
        url = f"{self._settings.api_base.rstrip('/')}/{method}"
        given = {key: value for key, value in body.items() if value is not None}
        if form:
            texts = {key: "true" if value is True else str(value) for key, value in given.items()}
            response = await self._client.call("POST", url, data=texts, headers=self._headers())
        else:
            response = await self._client.call("POST", url, json=given, headers=self._headers())
        failure = delivery_error(response.status_code, response.headers.get("Retry-After"))
        if failure is not None:
            raise failure
        try:
            answer: dict[str, Any] = response.json()
            if answer["ok"]:
                return answer
            error = str(answer.get("error"))
        except (ValueError, KeyError, TypeError) as broken:
            raise DeliveryError(f"{method}: Slack's answer cannot be read", unknown=True) from broken
        if error in AGAIN:
            raise DeliveryError(f"{method}: {error}", retry_after=RATE_LIMIT_SECONDS)
        raise DeliveryError(f"{method}: {error}", permanent=error not in UNSURE, unknown=error in UNSURE)


def _keep(known: dict[str, Any], key: str, value: str) -> None:
    known[key] = value
    if len(known) > STREAMS:
        del known[next(iter(known))]


def _metadata(key: str) -> dict[str, Any]:
    return {"event_type": EVENT, "event_payload": {"key": key}}


def _is_thread_gone(error: DeliveryError) -> bool:
    return str(error).endswith(": thread_not_found")


def _begins(text: str, said: str) -> bool:
    """Whether `said` is how the text begins: by letters, since Slack rewrites Markdown; by signs if it has no others."""
    if letters := _letters(said):
        return _letters(text).startswith(letters)
    signs = "".join(said.split())
    return signs != "" and "".join(text.split()).startswith(signs)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def _place(handle: str) -> tuple[str, str]:
    channel, _, ts = handle.removeprefix(STREAMED).partition(":")
    return channel, ts


def _button(label: str, action_id: str, value: str, style: str | None) -> dict[str, Any]:
    button = {
        "type": "button",
        "text": {"type": "plain_text", "text": label},
        "action_id": action_id,
        "value": value,
    }
    return {**button, "style": style} if style else button
