"""Hands each inbound message to the handler of its type, and runs the pumps of the channels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from miniclaw.agent.patience import refuse_at_once
from miniclaw.channel.base import Channel
from miniclaw.errors import NOT_NOW, MemoryStoreError, ProtocolError, StorageError
from miniclaw.gateway.ingress import refusal
from miniclaw.gateway.protocol import CommandPayload, Inbound, MessageType, Receipt, TextPayload

__all__ = ["MessageRouter", "pump"]

logger = logging.getLogger(__name__)

Handler = Callable[[Inbound], Awaitable[Receipt]]
ReadsCommands = Callable[[str], CommandPayload | None]

IN_FLIGHT: Final = 1000
"""Messages of one channel that are being stored at once; a further one waits in the channel."""


class MessageRouter:
    """Routes by `msg_type`; a text that is a command, in a channel where people type, is that command."""

    def __init__(
        self,
        read_command: ReadsCommands | None = None,
        *,
        refused: Callable[[Receipt], None] = lambda receipt: None,
        is_gone: Callable[[str], bool] = lambda user_id: False,
    ) -> None:
        self._refused = refused
        self._is_gone = is_gone
        self._handlers: dict[MessageType, Handler] = {}
        self._read_command = read_command

    def register(self, msg_type: MessageType, handler: Handler) -> None:
        """Let `handler` have all messages of a type.

        Raises:
            ValueError: the type has a handler.
        """
        if msg_type in self._handlers:
            raise ValueError(f"{msg_type} has a handler already")
        self._handlers[msg_type] = handler

    async def route(self, inbound: Inbound) -> Receipt:
        """Have a message carried out or stored; what cannot be is refused, never raised."""
        receipt = await self._route(inbound)
        if receipt.code is not None:
            self._refused(receipt)
        return receipt

    async def _route(self, inbound: Inbound) -> Receipt:
        try:
            if self._is_gone(inbound.user_id or ""):
                raise ProtocolError("forbidden", "This user was removed.")
            if inbound.typed:
                inbound = self._as_command(inbound)
            handler = self._handlers.get(inbound.msg_type)
            if handler is None:
                raise ProtocolError(
                    "unsupported", f"Messages of type `{inbound.msg_type}` are not taken here."
                )
            return await handler(inbound)
        except ProtocolError as error:
            return refusal(error)
        except MemoryStoreError as error:
            return refusal(ProtocolError("bad_arguments", f"{error}."))
        except StorageError as error:
            logger.error("message %s: %s", inbound.msg_id, error)
            return refusal(ProtocolError("storage_unavailable", NOT_NOW))
        except Exception:  # boundary: one message that breaks a handler must not stop its channel
            logger.exception("message %s broke its handler", inbound.msg_id)
            return refusal(ProtocolError("internal", "Something broke inside miniclaw; the log says what."))

    def _as_command(self, inbound: Inbound) -> Inbound:
        payload = inbound.payload
        if self._read_command is None or not isinstance(payload, TextPayload):
            return inbound
        if payload.text.startswith("//"):
            plain = payload.model_copy(update={"text": payload.text[1:]})
            return inbound.model_copy(update={"payload": plain})
        command = self._read_command(payload.text)
        if command is None:
            return inbound
        return inbound.model_copy(update={"payload": command, "msg_type": MessageType.COMMAND})


async def pump(channel: Channel, router: MessageRouter) -> None:
    """Take messages from a channel for ever and settle each.

    Messages are stored in the order in which they were received; they share commits instead of waiting
    for each other.
    """
    running: set[asyncio.Task[None]] = set()

    async def handle(inbound: Inbound) -> None:
        refuse_at_once()
        try:
            channel.settle(inbound, await router.route(inbound))
        except Exception:  # boundary: one message that cannot be settled must not stop its channel
            logger.exception("message %s could not be settled", inbound.msg_id)

    loop = asyncio.get_running_loop()
    try:
        while True:
            inbound = await channel.receive()
            task = loop.create_task(handle(inbound))
            running.add(task)
            task.add_done_callback(running.discard)
            if len(running) >= IN_FLIGHT:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
