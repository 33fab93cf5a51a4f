"""线上的消息：`GatewayMessage` 和四种载荷，JSON 进、JSON 出，边上校验一次。

这里不知道套接字，也不知道用户：`source` 由收下连接的一方盖章，从不相信对方自己写的。
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError, from_json

from day1_gateway.errors import ProtocolError

__all__ = [
    "CommandPayload",
    "ErrorPayload",
    "EventPayload",
    "GatewayMessage",
    "MessageType",
    "TextPayload",
    "command_result",
    "error_message",
    "event_message",
    "new_id",
    "now",
    "parse_frame",
]

ID_PATTERN: Final = r"^[A-Za-z0-9._:-]{1,128}$"
MessageId = Annotated[str, StringConstraints(pattern=ID_PATTERN)]


class MessageType(StrEnum):
    """一条消息是什么；载荷的形状由它决定。"""

    TEXT = "text"
    COMMAND = "command"
    EVENT = "event"
    ERROR = "error"


class _Strict(BaseModel):
    """多一个字段也不收：打错的字段名当场报错，而不是被悄悄忽略。"""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TextPayload(_Strict):
    """有人对智能体说的话。"""

    text: str = Field(pattern=r"\S")
    session_id: str | None = Field(default=None, max_length=128)


class CommandPayload(_Strict):
    """对网关本身的请求，例如 `ping`。"""

    name: str = Field(min_length=1, max_length=64)
    args: dict[str, Any] = Field(default_factory=dict)


class EventPayload(_Strict):
    """发生了的事，由网关发出。"""

    name: str
    session_id: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class ErrorPayload(_Strict):
    """一次拒绝：错误码和一句给人看的话。"""

    code: str
    message: str
    reply_to: str | None = None


Payload = TextPayload | CommandPayload | EventPayload | ErrorPayload

_PAYLOADS: Final[dict[MessageType, type[Payload]]] = {
    MessageType.TEXT: TextPayload,
    MessageType.COMMAND: CommandPayload,
    MessageType.EVENT: EventPayload,
    MessageType.ERROR: ErrorPayload,
}


# region message
class GatewayMessage(_Strict):
    """每条消息都有的六个字段，哪个方向都一样。"""

    msg_id: MessageId
    msg_type: MessageType
    source: str = ""
    target: str = "agent"
    payload: Payload
    timestamp: str = ""

    def to_json(self) -> str:
        """在线上的样子。"""
        return self.model_dump_json(exclude_none=True)

    # endregion

    @field_validator("payload", mode="before")
    @classmethod
    def _payload_of_its_type(cls, value: object, info: ValidationInfo) -> object:
        msg_type = info.data.get("msg_type")
        if msg_type is None:  # 类型本身就错了，那一条错误已经够清楚
            return value
        try:
            return _PAYLOADS[msg_type].model_validate(value)
        except ValidationError as error:
            raise PydanticCustomError("payload", "{said}", {"said": _describe(error, "payload")}) from error


def parse_frame(data: str | bytes) -> GatewayMessage:
    """读客户端的一帧。

    Raises:
        ProtocolError: 不是 JSON 对象时 `bad_json`，字段缺、多、不对时 `bad_message`，并说出是哪个字段。
    """
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise ProtocolError("bad_json", f"The frame is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ProtocolError("bad_json", "The frame must be a JSON object.")
    raw_id = value.get("msg_id")
    reply_to = raw_id if isinstance(raw_id, str) and re.fullmatch(ID_PATTERN, raw_id) else None
    try:
        message = GatewayMessage.model_validate(value)
    except ValidationError as error:
        raise ProtocolError("bad_message", _describe(error), reply_to=reply_to) from error
    if message.msg_type not in (MessageType.TEXT, MessageType.COMMAND):
        raise ProtocolError("bad_message", "`msg_type`: clients send text or command.", reply_to=reply_to)
    return message


def _describe(error: ValidationError, top: str = "") -> str:
    """第一处错误，一句话：哪个字段，怎么不对。"""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "payload":  # 载荷里的错误已经说清楚了
        return first["msg"]
    where = ".".join(filter(None, [top, *map(str, first["loc"])])) or "message"
    return f"`{where[:100]}`: {first['msg'][:200]}."


def new_id(prefix: str) -> str:
    """一个新的编号，例如 `evt_3f…`：前缀加 96 个随机位。"""
    return f"{prefix}_{secrets.token_hex(12)}"


def now() -> str:
    """此刻，RFC 3339，UTC，毫秒。只给人看，从不拿来排序。"""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def event_message(
    name: str, data: dict[str, Any], *, target: str, session_id: str | None = None
) -> GatewayMessage:
    """网关发出的一个事件。"""
    return _outbound(MessageType.EVENT, EventPayload(name=name, data=data, session_id=session_id), target)


def command_result(reply_to: str, name: str, result: dict[str, Any], *, target: str) -> GatewayMessage:
    """一条命令做完之后的回答。"""
    data = {"reply_to": reply_to, "name": name, "ok": True, "result": result}
    return event_message("command.result", data, target=target)


def error_message(code: str, message: str, *, target: str, reply_to: str | None = None) -> GatewayMessage:
    """一次拒绝。"""
    return _outbound(MessageType.ERROR, ErrorPayload(code=code, message=message, reply_to=reply_to), target)


def _outbound(msg_type: MessageType, payload: Payload, target: str) -> GatewayMessage:
    return GatewayMessage(
        msg_id=new_id("evt"),
        msg_type=msg_type,
        source="gateway",
        target=target,
        payload=payload,
        timestamp=now(),
    )
