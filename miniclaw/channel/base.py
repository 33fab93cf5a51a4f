"""What a channel is: a way in and a way out, and the small abilities it may have beyond that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol, runtime_checkable

from miniclaw.gateway.protocol import FileRef, GatewayMessage, Inbound, Receipt, ReplyTarget

__all__ = [
    "AsksApproval",
    "Channel",
    "Delivers",
    "FetchesFiles",
    "HeldHandles",
    "KeepsHandle",
    "KnowsAgain",
    "Pulled",
    "ShowsStatus",
    "StreamsReplies",
    "knows_again",
    "none_held",
]


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
        """The parts of a text as the platform takes and shows them; pure, nothing left out, at least one part."""
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


@runtime_checkable
class KnowsAgain(Protocol):
    """A push channel whose platform shows what comes again with the same key and text only once."""

    known_seconds: int
    """For how long after the first try."""


def knows_again(channel: Delivers, since: float, now: float) -> bool:
    """Whether what was tried first after `since` surely is known again, so that it goes out as it was."""
    return isinstance(channel, KnowsAgain) and 0 <= now - since <= channel.known_seconds


@runtime_checkable
class Pulled(Protocol):
    """A channel whose platform asks for the growing answer; only what it cannot show that way is delivered."""

    def left_over(self, target: ReplyTarget, text: str) -> list[tuple[int, str]]:
        """The parts of a final text that are delivered all the same, with their numbers; mostly none."""
        ...


KeepsHandle = Callable[[str], Awaitable[None]]
HeldHandles = Callable[[], Awaitable[Collection[str]]]
"""Gives the handles of answers that are on their way, so that none is taken for another's."""


async def none_held() -> Collection[str]:
    """Where nothing is on its way."""
    return ()


@runtime_checkable
class StreamsReplies(Protocol):
    """A push channel that shows an answer while it grows; `deliver` with the handle replaces it at the end."""

    stream_seconds: float
    """The least time between two updates."""

    async def begin_stream(
        self, target: ReplyTarget, text: str, *, key: str, known: KeepsHandle | None = None
    ) -> str | None:
        """Show the beginning of an answer; returns its handle, or `None` where this target cannot stream.

        Args:
            target: where.
            text: the beginning.
            key: that of the delivery.
            known: awaited with a handle that is known before anybody sees anything, so that a crash in between
                leaves something by which the answer is finished in its place.

        Raises:
            DeliveryError: it could not be shown.
        """
        ...

    async def update_stream(self, target: ReplyTarget, handle: str, text: str) -> None:
        """Show all of the text so far in the place of what is shown; raises as `begin_stream` does."""
        ...


@runtime_checkable
class ShowsStatus(Protocol):
    """A push channel that can show that somebody is at work."""

    async def show_working(self, target: ReplyTarget) -> None:
        """Show it until the answer comes; raises as `StreamsReplies.begin_stream` does."""
        ...


@runtime_checkable
class AsksApproval(Protocol):
    """A push channel whose platform has buttons. Without it a question is a text that names the commands."""

    async def ask_approval(
        self, target: ReplyTarget, question: dict[str, Any], *, repeat: bool
    ) -> str | None:
        """Show the question (`approval.requested`'s data); returns the handle of what was sent.

        `repeat` and errors are those of `Delivers.deliver`; the key is the approval's id.
        """
        ...

    async def close_approval(
        self, target: ReplyTarget, handle: str, question: dict[str, Any], decision: str
    ) -> None:
        """Show the decision in the place of the buttons."""
        ...


@runtime_checkable
class FetchesFiles(Protocol):
    """A push channel whose messages may carry files that the platform keeps."""

    async def fetch_file(self, target: ReplyTarget, file: FileRef, *, max_bytes: int) -> bytes:
        """The content of a file.

        Raises:
            DeliveryError: it is gone, larger than `max_bytes`, or not on one of the platform's own hosts.
        """
        ...
