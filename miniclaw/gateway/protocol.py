"""The one message protocol: `GatewayMessage`, its typed payloads, and strict parsing at the edge.

Owns what goes over the wire in both directions. Does not know sockets, sessions or users: `source` is
stamped by whoever accepted the connection, never read from the peer.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from miniclaw.errors import ProtocolError

__all__ = [
    "ERROR_CODES",
    "TERMINAL_EVENTS",
    "Attachment",
    "CommandPayload",
    "ErrorPayload",
    "EventPayload",
    "FileRef",
    "GatewayMessage",
    "Inbound",
    "MessageType",
    "Receipt",
    "ReplyTarget",
    "TextPayload",
    "error_message",
    "encode_json",
    "format_time",
    "has_unreadable",
    "new_id",
    "now",
    "parse_frame",
    "plain_text",
]

MessageId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]

TERMINAL_EVENTS: Final = frozenset({"turn.finished", "turn.failed", "turn.cancelled"})
"""Exactly one of these ends every turn."""

ERROR_CODES: Final = frozenset(
    "bad_json bad_message too_large unauthorized forbidden not_found session_not_found turn_not_found "
    "approval_not_found unknown_command bad_arguments unsupported session_busy overloaded rate_limited "
    "draining storage_unavailable internal".split()
)
"""Codes of an `error` message."""

_UNREADABLE = re.compile("[\ud800-\udfff\x00]")


class MessageType(StrEnum):
    """What a message is; the payload's shape follows from it."""

    TEXT = "text"
    COMMAND = "command"
    EVENT = "event"
    ERROR = "error"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Attachment(_Strict):
    """A file that was uploaded before."""

    id: MessageId


class TextPayload(_Strict):
    """What somebody says to the agent."""

    text: str = Field(pattern=r"\S")
    """At least one character that is no blank."""
    session_id: str | None = Field(default=None, max_length=128)
    attachments: tuple[Attachment, ...] = Field(default=(), max_length=8)


class CommandPayload(_Strict):
    """A request to the gateway itself, such as `ping` or `cancel`."""

    name: str = Field(min_length=1, max_length=64)
    args: dict[str, Any] = Field(default_factory=dict)


class EventPayload(_Strict):
    """Something that happened; turn events carry `attempt` and a `seq` that starts at 1 in each attempt."""

    name: str
    session_id: str | None = None
    turn_id: str | None = None
    attempt: int | None = None
    seq: int | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class ErrorPayload(_Strict):
    """A refusal: one of `ERROR_CODES` and one sentence for a person."""

    code: str
    message: str
    reply_to: str | None = None
    turn_id: str | None = None
    """Of a queued command that failed."""


Payload = TextPayload | CommandPayload | EventPayload | ErrorPayload


class GatewayMessage(_Strict):
    """The six fields that every message has, in every direction."""

    msg_id: MessageId
    msg_type: MessageType
    source: str = ""
    target: str = "agent"
    payload: Payload
    timestamp: str = ""

    def to_json(self) -> str:
        """The message as it goes over the wire: the six fields and nothing else."""
        return self.model_dump_json(include=_WIRE_FIELDS, exclude_none=True)


_WIRE_FIELDS: Final = {"msg_id", "msg_type", "source", "target", "payload", "timestamp"}


class ReplyTarget(BaseModel):
    """Where a push channel sends the answer; stored with the turn, so that a restart keeps it."""

    model_config = ConfigDict(frozen=True)

    conversation: str = ""
    thread: str | None = None
    message_id: str | None = None
    url: str | None = None
    account: str | None = None
    """The platform's tenant, team or robot, where sending needs it."""
    sender: str | None = None
    """The platform's id of whom it answers, where sending needs it."""
    expires_at: float | None = None
    """Until when `url` takes answers, in seconds since the epoch, where it does not do so for ever."""


class FileRef(BaseModel):
    """A file of a message: fetched from the platform when its turn begins, or uploaded before."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["image", "audio", "video", "file"] = "file"
    id: str
    name: str = ""
    mime: str = ""
    size: int | None = None
    """Bytes, where the platform tells."""
    url: str | None = None
    path: str = ""
    """Where an uploaded one lies in the workspace."""
    text_path: str = ""
    """Where its text lies, for one that is not a text itself."""
    note: str = ""
    """What keeps its text from being read, or from being whole."""


class Inbound(GatewayMessage):
    """A message with the envelope that its channel knows; only the six fields go on the wire."""

    channel: str
    account: str = ""
    sender: str = ""
    """The platform's id of the person, or how the sender calls itself."""
    user_id: str | None = None
    """The user, where the channel authenticated one; else identity maps `sender` to a user."""
    scope: str | None = None
    """Whose session it is, once known: the user's, or a group's (`grp_…`)."""
    conversation: str | None = None
    """The platform's conversation key; pull channels name a session instead."""
    session_id: str | None = None
    """The session that a pull channel's peer named or is in."""
    thread: str | None = None
    direct: bool = True
    dedupe: tuple[str, ...] = ()
    """Ids under which the same message may come again; empty = `msg_id`."""
    reply_to: ReplyTarget | None = None
    files: tuple[FileRef, ...] = ()
    only_known: bool = False
    """Taken only where the conversation has a session: a message in a group that does not name the agent."""
    strangers: Literal["serve", "pair", "refuse"] = "serve"
    """What becomes of a message of somebody whom identity does not know."""
    asks: bool = True
    """Whether somebody is there to answer an approval."""
    asks_until: float | None = None
    """Until when they see one, in seconds since the epoch, where it is not for as long as the turn runs."""
    typed: bool = False
    """A person typed it: a first word `/name` of a listed command is that command."""
    request_id: str = ""
    """The HTTP request that it came with, for the log."""

    @classmethod
    def of_valid(cls, **fields: Any) -> Inbound:
        """A message of fields that are valid already, the others by default.

        `model_construct` asks all 25 fields for their defaults, each time; this is a tenth of it.
        """
        message = cls.__new__(cls)
        set_field = object.__setattr__
        set_field(message, "__dict__", _INBOUND_DEFAULTS | fields)
        set_field(message, "__pydantic_fields_set__", set(fields))
        set_field(message, "__pydantic_extra__", None)
        set_field(message, "__pydantic_private__", None)
        return message


_INBOUND_DEFAULTS: Final = {
    name: field.get_default() for name, field in Inbound.model_fields.items() if not field.is_required()
}


@dataclass(slots=True)
class Receipt:
    """What became of an inbound message; the channel's only acknowledgement.

    `accepted` and `duplicate` are sent after the commit and carry the same ids. `answered` is a command
    that was done at once, with its `result`. Everything else changed nothing and carries an error `code`.
    """

    status: Literal["accepted", "duplicate", "answered", "busy", "refused", "unavailable"]
    session_id: str | None = None
    turn_id: str | None = None
    code: str | None = None
    message: str = ""
    name: str | None = None
    result: dict[str, Any] | None = None

    @property
    def stored(self) -> bool:
        """Whether there is a turn that will be, or has been, answered."""
        return self.status in ("accepted", "duplicate")


class _InboundText(_Strict):
    msg_id: MessageId
    msg_type: Literal["text"]
    source: str = ""
    target: Literal["agent"] = "agent"
    payload: TextPayload
    timestamp: str = ""


class _InboundCommand(_Strict):
    msg_id: MessageId
    msg_type: Literal["command"]
    source: str = ""
    target: Literal["agent"] = "agent"
    payload: CommandPayload
    timestamp: str = ""


_INBOUND: TypeAdapter[_InboundText | _InboundCommand] = TypeAdapter(
    Annotated[_InboundText | _InboundCommand, Field(discriminator="msg_type")]
)


def parse_frame(data: str | bytes) -> _InboundText | _InboundCommand:
    """Read one frame of a client.

    Raises:
        ProtocolError: `bad_json` when it is no JSON object in sound UTF-8, `bad_message` when a field is
            missing, unknown, or of the wrong type; the message names the field.
    """
    try:
        value = from_json(data, allow_inf_nan=False)
    except (ValueError, TypeError) as error:  # TypeError: a `str` that is no sound Unicode
        raise ProtocolError("bad_json", f"The frame is not JSON: {_first_line(error)}.") from error
    if not isinstance(value, dict):
        raise ProtocolError("bad_json", "The frame must be a JSON object.")
    try:
        message = _INBOUND.validate_python(value)
    except ValidationError as error:
        raise ProtocolError("bad_message", _describe(error), reply_to=_id_of(value)) from error
    # Such a character can only come as an escape: raw ones are no JSON and no UTF-8.
    may_hold = "\\u" in data if isinstance(data, str) else b"\\u" in data
    if may_hold and has_unreadable(message.payload.model_dump()):
        text = "The text holds a lone surrogate or a NUL character."
        raise ProtocolError("bad_message", text, reply_to=message.msg_id)
    return message


def _id_of(value: dict[str, Any]) -> str | None:
    raw_id = value.get("msg_id")
    return raw_id if isinstance(raw_id, str) and re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", raw_id) else None


def plain_text(text: str) -> str:
    """Text of a model or a tool with lone surrogates and NUL replaced by U+FFFD."""
    return _UNREADABLE.sub("\ufffd", text) if _UNREADABLE.search(text) else text


def has_unreadable(value: object) -> bool:
    """Whether any text in a value holds a lone surrogate or NUL, which no store or peer can take."""
    if not value:
        return False
    if isinstance(value, str):
        return _UNREADABLE.search(value) is not None
    if isinstance(value, dict):
        return any(has_unreadable(key) or has_unreadable(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(map(has_unreadable, value))
    return False


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _describe(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    # The first part of a place is the discriminator's tag, unless the message itself is at fault.
    where = ".".join(map(str, first["loc"][1:])) or "message"
    return f"`{where[:100]}`: {first['msg'][:200]}."


def new_id(prefix: str) -> str:
    """A fresh id such as `turn_3kV9…`: prefix and 96 random bits."""
    try:
        return f"{prefix}_{_drawn.pop()}"
    except IndexError:  # each asking of the system costs more than all the rest of a short frame
        bits = secrets.token_hex(12 * 100)
        _drawn.extend(bits[start : start + 24] for start in range(24, len(bits), 24))
        return f"{prefix}_{bits[:24]}"


_drawn: Final[list[str]] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn.clear)


def now() -> str:
    """This moment as RFC 3339 in UTC with milliseconds."""
    return _format(int(time.time() * 1000))


def format_time(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    return _format(round(seconds * 1e6) // 1000)


@lru_cache(maxsize=64)  # many frames are made within a millisecond
def _format(milliseconds: int) -> str:
    seconds, part = divmod(milliseconds, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{part:03d}Z"


def event_message(
    name: str, data: dict[str, Any], *, target: str, session_id: str | None = None, turn_id: str | None = None
) -> GatewayMessage:
    """An event that belongs to no numbered attempt, such as `message.accepted` or `session.updated`."""
    payload = EventPayload(name=name, data=data, session_id=session_id, turn_id=turn_id)
    return _outbound(MessageType.EVENT, payload, target)


def command_result(reply_to: str, name: str, result: dict[str, Any], *, target: str) -> GatewayMessage:
    """The answer to a command that was carried out."""
    data = {"reply_to": reply_to, "name": name, "ok": True, "result": result}
    return event_message("command.result", data, target=target)


def error_message(
    code: str, message: str, *, target: str, reply_to: str | None = None, turn_id: str | None = None
) -> GatewayMessage:
    """A refusal with one of `ERROR_CODES`."""
    payload = ErrorPayload(code=code, message=message, reply_to=reply_to, turn_id=turn_id)
    return _outbound(MessageType.ERROR, payload, target)


def _outbound(msg_type: MessageType, payload: Payload, target: str) -> GatewayMessage:
    return GatewayMessage(
        msg_id=new_id("evt"),
        msg_type=msg_type,
        source="gateway",
        target=target,
        payload=payload,
        timestamp=now(),
    )


def encode_json(value: object) -> bytes:
    """Compact JSON with readable Unicode, as we write all of it; NaN and infinities become null."""
    try:
        return orjson.dumps(value)
    except TypeError:  # a number beyond 64 bits, a model, a key that is no text, a lone surrogate
        pass
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:  # a lone surrogate
        return plain_text(json.dumps(value, ensure_ascii=False, separators=(",", ":"))).encode()
