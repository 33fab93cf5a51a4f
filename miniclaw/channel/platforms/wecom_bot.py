"""WeCom's AI bot: it posts what people say, and asks for the growing answer until that has ended.

Rules: https://developer.work.weixin.qq.com/document/path/100719 (messages and refreshes), /101031 (answers),
/101138 (`response_url`: one message, within an hour). The id of a stream is the id of its turn.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from miniclaw.channel.dialects import to_wecom_bot
from miniclaw.channel.markup import split_markdown
from miniclaw.channel.platforms.client import PlatformClient, is_on
from miniclaw.channel.platforms.spoken import spoken, stable_id
from miniclaw.channel.platforms.wecom import check_query, echo_of, envelope_of, opened
from miniclaw.channel.platforms.wecom_api import WeComError, size, wecom_answer
from miniclaw.channel.platforms.wecom_crypto import WeComCrypto
from miniclaw.channel.questions import question_text
from miniclaw.channel.webhook import Answer, Poll, WebhookRequest, delivery_error
from miniclaw.channel_settings import WeComAccount
from miniclaw.config import Clock
from miniclaw.errors import DeliveryError, ProtocolError
from miniclaw.gateway.command_table import read_command
from miniclaw.gateway.protocol import FileRef, Inbound, Receipt, ReplyTarget
from miniclaw.gateway.standings import Standing

__all__ = ["WeComBotPlatform"]

logger = logging.getLogger(__name__)

PART_BYTES: Final = 18_000
"""Of an answer; WeCom shows 20,480 bytes, of which a question or a note may need some."""
CLOSE_SECONDS: Final = 330.0
"""After its message an answer is not shown any more but delivered; WeCom asks for six minutes."""
URL_SECONDS: Final = 3600.0
"""For how long an answer's `response_url` is good."""
LATER: Final = "⏳ 还在处理，完成后另发一条。/ Still working; the answer will follow as a message of its own."
LOST: Final = "（这条回答不在了。/ This answer is gone.）"
NOTHING: Final = "（没有内容。/ Nothing to say.）"
CUT: Final = "\n\n（太长，后面的没有发出。/ Too long; the rest was not sent.）"

UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


class WeComBotPlatform:
    """One AI bot; it is pulled, so nothing but what it cannot show becomes a delivery."""

    def __init__(self, settings: WeComAccount, *, clock: Clock, account: str = "") -> None:
        token = settings.bot_token or settings.token
        key = settings.bot_encoding_aes_key or settings.encoding_aes_key
        assert token is not None and key is not None
        self._settings = settings
        self._clock = clock
        self._client = PlatformClient()
        self._crypto = WeComCrypto(token.get_secret_value(), key.get_secret_value(), "")
        name = re.escape(settings.bot_name.removeprefix("@"))
        self._mention = re.compile(rf"\s*@{name}(?!\w)\s*") if name else None
        self.name = f"wecom-bot/{account}" if account else "wecom-bot"
        self.paths: Mapping[str, tuple[str, ...]] = {self.name: ("GET", "POST")}

    async def start(self) -> None:
        """Nothing to learn."""

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.close()

    def verify(self, request: WebhookRequest) -> None:
        """Check the signature, and that the message is for a bot."""
        encrypted = _encrypted(request)
        check_query(self._crypto, request, encrypted)
        opened(self._crypto, encrypted)

    def parse(self, request: WebhookRequest) -> Inbound | Answer | Poll:
        """A check of the address, a message, a question for more of an answer, or an event."""
        text = opened(self._crypto, _encrypted(request))
        if request.method == "GET":
            return Answer(text=text)
        try:
            message = _object(text)
            match message["msgtype"]:
                case "stream":
                    return Poll(turn_id=_id(message["stream"]["id"]).encode().decode())  # it is sent back
                case "event":
                    return Answer()
            return self._message(message, request.now)
        except UNREADABLE as error:
            raise ProtocolError(
                "bad_message", f"the message cannot be read: {type(error).__name__}"
            ) from error

    def answer(self, receipt: Receipt, inbound: Inbound) -> Answer:
        """Of a message about which there is nothing to say; no answer at all when WeCom is to try again."""
        return Answer(hang_up=receipt.status == "unavailable")

    def show(self, stream_id: str, standing: Standing | None) -> Answer:
        """The answer as far as it is; the last one has `finish`."""
        if standing is None:
            return self._stream(stream_id, LOST, finish=True)
        (text, *rest), finish = self.split(standing.text), standing.is_ended
        if standing.is_delivered:
            text = LATER
        elif finish:
            has_url = standing.target is not None and standing.target.url is not None
            text = (text if text.strip() else NOTHING) + (CUT if rest and not has_url else "")
        else:
            if (question := standing.question) is not None:
                text = f"{text}\n\n{self.split(question_text(question))[0]}".lstrip()
            if standing.target is not None and self._is_late(standing.target):
                text, finish = f"{text}\n\n{LATER}".lstrip(), True
        return self._stream(stream_id, text, finish=finish)

    def split(self, text: str) -> list[str]:
        """Parts that WeCom shows."""
        return split_markdown(to_wecom_bot(text), PART_BYTES, measure=size)

    def left_over(self, target: ReplyTarget, text: str) -> list[tuple[int, str]]:
        """What was not shown: the part behind the first, or all of it when WeCom has stopped asking."""
        if target.url is None:
            return []
        first = 0 if self._is_late(target) else 1
        rest = self.split(text)[first:]
        return [(first, rest[0] + CUT if len(rest) > 1 else rest[0])] if rest else []

    async def deliver(
        self, target: ReplyTarget, text: str, *, key: str, repeat: bool, handle: str | None = None
    ) -> str | None:
        """Send what was left over to the message's own URL, which takes one message only."""
        host = urlsplit(self._settings.api_base).netloc
        if target.url is None or not is_on(target.url, (host,)):
            raise DeliveryError("the message's response_url is not on WeCom's host", permanent=True)
        if self._clock() > (target.expires_at or 0):
            raise DeliveryError("the message's response_url is good for an hour only", permanent=True)
        body = {"msgtype": "markdown", "markdown": {"content": text if text.strip() else NOTHING}}
        response = await self._client.call("POST", target.url, json=body)
        failure = delivery_error(response.status_code, response.headers.get("Retry-After"))
        if failure is not None:
            raise failure
        try:
            wecom_answer("response_url", response.json())
        except WeComError as error:
            if not (repeat and error.permanent):
                raise
            logger.warning("%s: an earlier try has used the URL: %s", key, error)
        except (ValueError, KeyError, TypeError) as broken:
            raise DeliveryError("response_url: WeCom's answer cannot be read", unknown=True) from broken
        return None

    async def fetch_file(self, target: ReplyTarget, file: FileRef, *, max_bytes: int) -> bytes:
        """A file, which WeCom keeps encrypted for five minutes."""
        if file.url is None or not is_on(file.url, self._settings.file_hosts):
            raise DeliveryError("the file is not on one of WeCom's hosts", permanent=True)
        limit = min(max_bytes, self._settings.file_bytes)
        data = await self._client.download(file.url, headers={}, max_bytes=limit)
        try:
            return self._crypto.decrypt_file(data)
        except ValueError as error:
            raise DeliveryError(f"the file cannot be decrypted: {error}", permanent=True) from error

    def _is_late(self, target: ReplyTarget) -> bool:
        """Whether WeCom stops asking; where it could not be told later, it is shown for as long as it asks."""
        asked_at = (target.expires_at or 0) - URL_SECONDS
        return target.url is not None and self._clock() - asked_at > CLOSE_SECONDS

    def _stream(self, stream_id: str, text: str, *, finish: bool) -> Answer:
        stream = {"id": stream_id, "finish": finish, "content": text}
        clear = json.dumps({"msgtype": "stream", "stream": stream}, ensure_ascii=False)
        encrypted, moment, nonce = self._crypto.encrypt(clear), int(self._clock()), secrets.token_hex(8)
        signature = self._crypto.sign(str(moment), nonce, encrypted)
        return Answer(
            body={"encrypt": encrypted, "msgsignature": signature, "timestamp": moment, "nonce": nonce}
        )

    def _message(self, message: dict[str, Any], moment: float) -> Inbound:
        bot, person = _id(message["aibotid"]), _id(message["from"]["userid"])
        is_group = message.get("chattype") == "group"
        conversation = _id(message["chatid"]) if is_group else person
        text, files = _content(message)
        if self._mention is not None and (named := self._mention.match(text)) is not None:
            text = text[named.end() :]
        if isinstance(message.get("quote"), dict):
            quoted, more = _content(message["quote"])
            quoted = "" if read_command(text) else quoted  # a command stands at the beginning and takes all
            lines = "".join(f"> {line}\n" for line in quoted.splitlines())
            text, files = f"{lines}\n{text}" if lines else text, (*files, *more)
        url = message.get("response_url")
        return spoken(
            self._settings,
            self.name,
            text,
            files,
            msg_id=stable_id("wecom-bot", bot, _id(message["msgid"])),
            account=bot,
            sender=person,
            conversation=conversation,
            direct=not is_group,
            dedupe=(f"msg:{bot}:{message['msgid']}",),
            asks_until=moment + CLOSE_SECONDS,
            reply_to=ReplyTarget(
                conversation=conversation,
                account=bot,
                sender=person,
                url=str(url) if url else None,
                expires_at=moment + URL_SECONDS,
            ),
        )


def _encrypted(request: WebhookRequest) -> str:
    if request.method == "GET":
        return echo_of(request)
    try:
        return str(_object(envelope_of(request))["encrypt"])
    except UNREADABLE as error:
        raise ProtocolError("unauthorized", f"the envelope cannot be read: {type(error).__name__}") from error


def _object(text: str | bytes) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError("not a JSON object")
    return found


def _id(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("an id is missing")
    return value


def _content(message: dict[str, Any]) -> tuple[str, tuple[FileRef, ...]]:
    """Text and files of a message, of a part of a mixed one, or of a quoted one."""
    kind = str(message["msgtype"])
    match kind:
        case "text" | "voice":
            return str(message[kind]["content"]), ()
        case "image" | "file" | "video":
            url = str(message[kind]["url"]).strip()
            shown: Any = kind
            return "", (FileRef(kind=shown, id=urlsplit(url).path.rpartition("/")[2] or kind, url=url),)
        case "mixed":
            parts = [_content(part) for part in message["mixed"]["msg_item"]]
            text = "\n".join(text for text, _ in parts if text)
            return text, tuple(file for _, files in parts for file in files)
    return f"[{kind[:40]}]", ()
