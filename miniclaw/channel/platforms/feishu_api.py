"""What we ask of Feishu: replies as cards, cards that stream, reactions, questions with buttons, files.

Methods: https://open.feishu.cn/document/server-docs/im-v1/message/reply,
https://open.feishu.cn/document/cardkit-v1/streaming-updates-openapi-overview.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from typing import Any, Final
from urllib.parse import quote

from miniclaw.channel.base import KeepsHandle
from miniclaw.channel.markup import split_markdown
from miniclaw.channel.platforms.client import MARK
from miniclaw.channel.platforms.feishu_client import FeishuClient, FeishuError
from miniclaw.channel.platforms.feishu_content import (
    ANSWER,
    button,
    card,
    size,
    to_card,
    without_pings,
)
from miniclaw.channel.questions import question_markdown
from miniclaw.channel_settings import FeishuAccount
from miniclaw.config import Clock
from miniclaw.errors import DeliveryError
from miniclaw.gateway.protocol import FileRef, ReplyTarget

__all__ = ["FeishuApi"]

logger = logging.getLogger(__name__)

PART_BYTES: Final = 20_000
"""Of a card's text; Feishu takes 30 KB of a card, and counts some of what it makes of the text."""
UUID_SECONDS: Final = 3600 - 60
"""How long Feishu knows the `uuid` of a message, and a minute less."""
LONGEST_UUID: Final = 50
UNSEEN: Final = "?"
"""Before the handle of a card of which nobody knows whether a message shows it."""
START_SECONDS: Final = 5.0
"""How long Feishu may take at start to say who the bot is."""
LEARN_SECONDS: Final = 30.0
"""Before it is asked again."""
TIDY_SECONDS: Final = 3.0
"""How long taking a reaction away may take; it is no part of a delivery."""

GONE: Final = frozenset({230011, 230019, 230050, 230110, 230111, 231003})
"""The message that is replied to was withdrawn, or cannot be seen."""
STREAM_CLOSED: Final = frozenset({200850, 300309})
"""Feishu ends a stream by itself ten minutes after its begin."""
NO_CARD: Final = frozenset({230025, 230099, 200220, 200621, 200860})
"""Feishu does not take this content as a card."""


class FeishuApi:
    """The sending half of Feishu's platform."""

    known_seconds = UUID_SECONDS
    stream_seconds = 1.0

    def __init__(self, settings: FeishuAccount, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._client = FeishuClient(settings, clock=clock)
        self._learning: asyncio.Task[None] | None = None
        self._reactions: dict[str, str] = {}
        """Our reaction to a message that is being worked on."""
        self._reacts = settings.stream
        self._last_tick = 0
        self.bot_open_id = settings.bot_open_id

    async def start(self) -> None:
        """Ask who the bot is, where the settings do not say, and go on asking until Feishu answers."""
        if self.bot_open_id or self._settings.app_secret is None:
            return
        if not await self._learn():
            self._learning = asyncio.get_running_loop().create_task(self._learn_later())

    async def close(self) -> None:
        """Let go of connections."""
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait([self._learning])
        await self._client.close()

    async def _learn(self) -> bool:
        try:
            async with asyncio.timeout(START_SECONDS):
                self.bot_open_id = await self._client.call("GET", "bot/v3/info", give="bot.open_id")
        except (DeliveryError, TimeoutError) as error:
            logger.warning(
                "Feishu does not say who the bot is (%s); in groups nobody is answered until it does",
                error or "no answer in time",
            )
            return False
        return True

    async def _learn_later(self) -> None:
        while not self.bot_open_id:
            await asyncio.sleep(LEARN_SECONDS)
            await self._learn()

    def split(self, text: str) -> list[str]:
        """Parts that fit into a card."""
        return split_markdown(text, PART_BYTES, measure=size)

    async def deliver(
        self, target: ReplyTarget, text: str, *, key: str, repeat: bool, handle: str | None = None
    ) -> str | None:
        """Send one part, or replace what was streamed by it; see `Delivers.deliver`."""
        if handle is not None:
            if handle.startswith(UNSEEN):
                handle = await self._shown(target, handle.removeprefix(UNSEEN), key)
            if handle and await self._finish(handle, text):
                await self._take_reaction(target)
                return handle
            key += ".new"
        message_id = await self._send_text(target, MARK + text if repeat else text, key)
        await self._take_reaction(target)
        return message_id

    async def begin_stream(
        self, target: ReplyTarget, text: str, *, key: str, known: KeepsHandle | None = None
    ) -> str | None:
        """A card that streams; its handle carries when it began, from which sequence numbers are counted."""
        if not self._settings.stream:
            return None
        began = self._tick()
        content = to_card(self.split(text)[0])
        body = {"type": "card_json", "data": _json(card(content, streaming_mode=True))}
        try:
            card_id = await self._client.call("POST", "cardkit/v1/cards", body, give="data.card_id")
        except DeliveryError as error:
            raise DeliveryError(str(error)) from error  # whatever became of it, nobody sees it yet
        handle = f"{card_id}:{began}"
        if known is not None:
            await known(UNSEEN + handle)
        try:
            await self._show_card(target, handle, key)
        except DeliveryError as error:
            if not error.unknown:
                raise
            await self._show_card(target, handle, key)  # the same key: it is sent once
        return handle

    async def _shown(self, target: ReplyTarget, handle: str, key: str) -> str:
        """Its handle once a card is surely seen, by the key under which it is sent once; else nothing."""
        if self._clock() - int(handle.partition(":")[2]) / 1000 > UUID_SECONDS:
            return ""
        try:
            await self._show_card(target, handle, key)
        except FeishuError as error:
            if not error.permanent:
                raise
            return ""
        return handle

    async def _show_card(self, target: ReplyTarget, handle: str, key: str) -> None:
        """Send the message that shows a card."""
        content = _json({"type": "card", "data": {"card_id": handle.partition(":")[0]}})
        # Not the delivery's own key: should the card be lost, its text has to be sent under that one.
        await self._send(target, "interactive", content, f"{key}.card")

    async def update_stream(self, target: ReplyTarget, handle: str, text: str) -> None:
        """Show all of the text so far."""
        await self._write(handle, to_card(self.split(text)[0]))

    async def show_working(self, target: ReplyTarget) -> None:
        """A reaction to the message, which is taken away with the answer."""
        if target.message_id is None or not self._reacts:
            return
        body = {"reaction_type": {"emoji_type": "Typing"}}
        try:
            path = _message(target.message_id, "reactions")
            reaction = await self._client.call("POST", path, body, give="data.reaction_id")
            self._reactions[target.message_id] = reaction
        except FeishuError as error:
            self._reacts = not error.permanent or error.code in GONE  # the app has no permission for it
            raise

    async def ask_approval(
        self, target: ReplyTarget, question: dict[str, Any], *, repeat: bool
    ) -> str | None:
        """The question with buttons; its key lets Feishu show it once, however often it is sent."""
        buttons = [
            button(label, {"approval_id": str(question["approval_id"]), "decision": decision}, kind)
            for label, decision, kind in (
                ("✓ 同意 Approve", "approve", "primary"),
                ("本会话都同意 This session", "session", "default"),
                ("✗ 拒绝 Deny", "deny", "danger"),
            )
        ]
        content = _json(card(to_card(question_markdown(question, sign="/")), *buttons))
        return await self._send(target, "interactive", content, str(question["approval_id"]))

    async def close_approval(
        self, target: ReplyTarget, handle: str, question: dict[str, Any], decision: str
    ) -> None:
        """The question with its answer in the place of the buttons."""
        content = _json(card(f"{to_card(question_markdown(question))}\n\n→ **{decision}**"))
        await self._client.call("PATCH", _message(handle), {"content": content})

    async def fetch_file(self, target: ReplyTarget, file: FileRef, *, max_bytes: int) -> bytes:
        """A file of a message."""
        path = _message(target.message_id or "", "resources", file.id)
        params = {"type": "image" if file.kind == "image" else "file"}
        most = min(max_bytes, self._settings.file_bytes)
        return await self._client.download(path, params=params, max_bytes=most)

    async def _send_text(self, target: ReplyTarget, text: str, key: str) -> str:
        """A card, or the bare text where Feishu does not take it as a card."""
        try:
            return await self._send(target, "interactive", _json(card(to_card(text))), key)
        except FeishuError as error:
            if error.code not in NO_CARD:
                raise
            logger.warning("delivery %s is sent as a text: %s", key, error)
        return await self._send(target, "text", _json({"text": without_pings(text)}), key)

    async def _send(self, target: ReplyTarget, kind: str, content: str, key: str) -> str:
        """Reply to the message, or write into the chat where it is gone; the id of what was sent."""
        uuid = key if len(key) <= LONGEST_UUID else hashlib.sha256(key.encode()).hexdigest()[:LONGEST_UUID]
        body = {"msg_type": kind, "content": content, "uuid": uuid}
        if target.message_id is not None:
            reply = {**body, "reply_in_thread": True} if target.thread else body
            path = _message(target.message_id, "reply")
            try:
                return await self._client.call("POST", path, reply, give="data.message_id")
            except FeishuError as error:
                if error.code not in GONE:
                    raise
                logger.info("%s is gone; the reply goes into the chat: %s", target.message_id, error)
        body["receive_id"] = target.conversation
        return await self._client.call(
            "POST", "im/v1/messages", body, params={"receive_id_type": "chat_id"}, give="data.message_id"
        )

    async def _finish(self, handle: str, text: str) -> bool:
        """Let the card say exactly `text` and end its stream; `False` when the card takes no text any more."""
        try:
            await self._write(handle, to_card(text))
        except FeishuError as error:
            if not error.permanent:
                raise
            logger.warning("the answer is sent anew, since its card %s takes no text: %s", handle, error)
            return False
        try:
            await self._set_streaming(handle, is_on=False)
        except FeishuError as error:
            if not error.permanent:
                raise
            logger.info("the stream of card %s cannot be ended: %s", handle, error)
        return True

    async def _write(self, handle: str, content: str) -> None:
        """Put a text into a card; a stream that has ended is opened again."""
        path = f"elements/{ANSWER}/content"
        try:
            await self._change("PUT", handle, path, content=content)
        except FeishuError as error:
            if error.code not in STREAM_CLOSED:
                raise
            await self._set_streaming(handle, is_on=True)
            await self._change("PUT", handle, path, content=content)

    async def _set_streaming(self, handle: str, *, is_on: bool) -> None:
        settings = _json({"config": {"streaming_mode": is_on}})
        await self._change("PATCH", handle, "settings", settings=settings)

    async def _change(self, method: str, handle: str, path: str, **body: str) -> None:
        """Change a card; its sequence counts milliseconds since it began, so that it rises after a restart."""
        card_id, _, began = handle.removeprefix(UNSEEN).partition(":")
        sequence = max(1, self._tick() - int(began))
        turned = {**body, "sequence": sequence, "uuid": f"{card_id}.{sequence}"}
        await self._client.call(method, f"cardkit/v1/cards/{quote(card_id, safe='')}/{path}", turned)

    def _tick(self) -> int:
        self._last_tick = max(self._last_tick + 1, int(self._clock() * 1000))
        return self._last_tick

    async def _take_reaction(self, target: ReplyTarget) -> None:
        """Take the reaction away; a failure leaves it there and does not concern the answer."""
        message_id = target.message_id or ""
        if (reaction := self._reactions.pop(message_id, None)) is None:
            return
        try:
            async with asyncio.timeout(TIDY_SECONDS):
                await self._client.call("DELETE", _message(message_id, "reactions", reaction))
        except (DeliveryError, TimeoutError) as error:
            logger.info("the reaction to %s stays: %s", message_id, error or "no answer in time")


def _message(*parts: str) -> str:
    return "im/v1/messages/" + "/".join(quote(part, safe="") for part in parts)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
