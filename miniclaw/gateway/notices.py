"""Short replies of a push channel that belong to no turn: busy, not known here, what a command came to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from miniclaw.agent.command_text import LISTED, command_text
from miniclaw.agent.replies import is_chinese
from miniclaw.channel.base import Delivers
from miniclaw.config import Clock
from miniclaw.errors import StorageError
from miniclaw.gateway.dispatcher import Dispatcher
from miniclaw.gateway.protocol import Inbound, Receipt, TextPayload
from miniclaw.identity import Identities
from miniclaw.session.once import dedupe_key
from miniclaw.session.outbox import Delivery, DeliveryState
from miniclaw.session.ports import Deliveries
from miniclaw.session.rows import note_key

__all__ = ["Notices"]

logger = logging.getLogger(__name__)

_BUSY: Final = (
    "前面的消息还没处理完，这一条没有收下；请稍后再发。",
    "Earlier messages are still being worked on and this one was not taken; send it again in a while.",
)
_PAIR: Final = (
    "我还不认识你。请让管理员运行：miniclaw users pair 用户名 {code}",
    "I do not know you yet. Ask the operator to run: miniclaw users pair USER {code}",
)


class Notices:
    """Stores such replies as delivery rows, once for each message, and lets the dispatcher send them."""

    def __init__(
        self,
        outbox: Deliveries,
        channels: Mapping[str, Delivers],
        dispatcher: Dispatcher,
        identities: Identities,
        *,
        clock: Clock,
    ) -> None:
        self._outbox = outbox
        self._channels = channels
        self._dispatcher = dispatcher
        self._identities = identities
        self._clock = clock

    async def tell(self, inbound: Inbound, receipt: Receipt) -> None:
        """Reply to the sender of a message that started no turn, where there is something to say."""
        try:
            if inbound.reply_to is not None and (text := await self.text(inbound, receipt)):
                await self._store(inbound, text, shows=_sessions_in(receipt.result or {}))
        except StorageError as error:
            logger.error("a reply to %s could not be stored: %s", inbound.msg_id, error)

    async def note(self, inbound: Inbound, text: str) -> bool:
        """Keep that a person is told in the platform's answer; `False`: a copy of the message was taken meanwhile.

        Raises:
            StorageError: it could not be kept.
        """
        return await self._store(inbound, text, state="sent")

    async def has_told(self, inbound: Inbound) -> bool:
        """Whether a person had such a reply to this message: one that was told to write again is not run as well."""
        return inbound.typed and await self._outbox.has(note_key(inbound))

    async def text(self, inbound: Inbound, receipt: Receipt) -> str:
        """What there is to say of a message that started no turn; empty = nothing."""
        said = inbound.payload.text if isinstance(inbound.payload, TextPayload) else ""
        language = 0 if is_chinese(said) or not said.isascii() else 1
        if receipt.status == "busy":
            return _BUSY[language]
        if receipt.code == "pairing":
            code = await self._identities.pairing_code(inbound.channel, inbound.account, inbound.sender)
            return "\n".join(text.format(code=code) for text in _PAIR)
        is_command = inbound.typed and receipt.name is not None
        if is_command and receipt.result is not None:
            return command_text(str(receipt.name), receipt.result)
        return receipt.message if receipt.status == "refused" and receipt.code != "ignored" else ""

    async def _store(
        self, inbound: Inbound, text: str, *, state: DeliveryState = "pending", shows: str = ""
    ) -> bool:
        assert inbound.reply_to is not None
        moment = self._clock()
        person = (inbound.channel, inbound.account, inbound.sender)
        user_id = inbound.user_id or await self._identities.user_of_person(*person)
        rows = [
            Delivery(
                key=note_key(inbound, part),
                n=0,
                part=part,
                turn_id=shows,
                user_id=user_id or "",
                channel=inbound.channel,
                account=inbound.account,
                conversation=inbound.reply_to.conversation,
                target=inbound.reply_to,
                text="" if state == "sent" else piece,
                state=state,
                next_at=moment,
                created_at=moment,
            )
            for part, piece in enumerate(self._channels[inbound.channel].split(text))
        ]
        ids = inbound.dedupe if inbound.typed else ()
        taken = [dedupe_key(inbound.channel, inbound.account, each) for each in ids]
        if not await self._outbox.notice(rows, unless=taken):
            return False
        if state == "pending":
            self._dispatcher.take_up(rows[0])
        return True


def _sessions_in(result: Mapping[str, Any]) -> str:
    """The ids of the sessions that a command's result tells of; where one is deleted, the text goes with it."""
    rows = (result, *(result.get("sessions") or ())[:LISTED])
    return " ".join({str(row["session_id"]) for row in rows if row.get("session_id")})
