"""What a channel is: a way in and a way out, and the small abilities it may have beyond that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

from miniclaw.gateway.protocol import GatewayMessage, Inbound, Receipt, ReplyTarget

__all__ = ["Channel", "Delivers"]


class Channel(ABC):
    """A way for people or programs to talk to the agent.

    The gateway runs one pump a channel: it takes what `receive()` returns, has it stored or carried out,
    and hands the receipt to `settle()`, which is the only acknowledgement the peer gets.
    """

    name: str
    """Unique; part of de-duplication keys and of outbound targets."""
    aliases: tuple[str, ...] = ()
    """Further names under which its messages are stored."""

    @abstractmethod
    async def start(self) -> None:
        """Open what the channel listens on."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop listening and close what is open; may be called again."""

    @abstractmethod
    async def receive(self) -> Inbound:
        """The next message, as soon as there is one."""

    @abstractmethod
    async def send(self, message: GatewayMessage) -> None:
        """Send a message to whom its `target` names; a peer that is gone is no error."""

    @abstractmethod
    def settle(self, inbound: Inbound, receipt: Receipt) -> None:
        """Tell the peer what became of its message; called once for each message received."""


@runtime_checkable
class Delivers(Protocol):
    """A push channel: answers are sent to the platform, which nobody polls."""

    def split(self, text: str) -> list[str]:
        """The parts of a final text as the platform takes them; pure, lossless, at least one part."""
        ...

    async def deliver(
        self, target: ReplyTarget, text: str, *, key: str, repeat: bool, handle: str | None = None
    ) -> str | None:
        """Send one part and return the platform's handle of it, if it gives one.

        Args:
            target: where the message came from.
            text: the part.
            key: the idempotency key, `<turn_id>.<part>`; the same at every try.
            handle: the platform's handle of a streamed message that this text replaces.
            repeat: an earlier try may have arrived; the text is to be marked where the key does not help.

        Raises:
            DeliveryError: it was not sent, or it is not known whether it was.
        """
        ...
