"""按消息类型找处理函数；任何处理函数出错，对方都得到一个回答，而连接活着。"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from day1_gateway.errors import ProtocolError
from day1_gateway.protocol import GatewayMessage, MessageType, error_message

__all__ = ["MessageRouter"]

logger = logging.getLogger(__name__)

Handler = Callable[[GatewayMessage], Awaitable[GatewayMessage | None]]


class MessageRouter:
    """一种类型一个处理函数。"""

    def __init__(self) -> None:
        self._handlers: dict[MessageType, Handler] = {}

    def register(self, msg_type: MessageType, handler: Handler) -> None:
        """以后这种消息都交给 `handler`。

        Raises:
            ValueError: 这种类型已经有人管了。
        """
        if msg_type in self._handlers:
            raise ValueError(f"{msg_type} has a handler already")
        self._handlers[msg_type] = handler

    # region route
    async def route(self, inbound: GatewayMessage) -> GatewayMessage | None:
        """办一条消息，返回回复；办不了的变成 `error` 回复，从不抛出。"""
        try:
            handler = self._handlers.get(inbound.msg_type)
            if handler is None:
                raise ProtocolError("unsupported", f"Messages of type `{inbound.msg_type}` are not taken.")
            logger.debug("message %s goes to the handler of %s", inbound.msg_id, inbound.msg_type)
            reply = await handler(inbound)
            if reply is not None:
                reply.to_json()  # 写不成一帧的回复，也是处理函数的错，要在这张网里发现
            return reply
        except ProtocolError as error:  # 处理函数有意的拒绝，原话转告，发不出去的字换成问号
            code, text = error.code, str(error).encode("utf-8", "replace").decode()
        except Exception:  # 边界：细节只进日志，不给外人看
            logger.exception("message %s broke its handler", inbound.msg_id)
            code, text = "internal", "Something broke inside the gateway; the log says what."
        return error_message(code, text, target=inbound.source, reply_to=inbound.msg_id)

    # endregion
