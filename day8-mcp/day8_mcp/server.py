"""我们提供什么：几个方法，和一个客户端的一次连接。怎么运送是 `serve.py` 的事。"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from day5_tools import ToolRegistry
from day8_mcp import protocol
from day8_mcp.protocol import HANDSHAKE, INVALID_PARAMS, MCPError, Message, Request

logger = logging.getLogger(__name__)
MAX_CALLS: Final = 64  # 一个客户端同时最多几个请求，再多就拒绝
READS: Final = {"annotations": {"readOnlyHint": True}}  # 信得过我们的，用的时候就不用问人
Send = Callable[[bytes], None]


class Call(NamedTuple):
    """处理一个请求时知道的：哪个连接，问了什么。"""

    session: "Session"
    request: Request


class RegistryTools:
    """注册表里只读的工具。会改变东西的不拿出去：线那头是谁，我们没法问。"""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    async def list_tools(self, call: Call) -> Sequence[dict[str, Any]]:
        return [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.parameters, **READS}
            for name in self._registry.names()
            if (tool := self._registry.find(name)) and tool.risk == "read"
        ]

    async def call_tool(self, name: str, arguments: dict[str, Any], call: Call) -> dict[str, Any] | None:
        tool = self._registry.find(name)
        if tool is None or tool.risk != "read":
            return None
        result = await self._registry.execute(name, arguments)
        return {"content": [{"type": "text", "text": result.content}], "isError": not result.ok}


class MCPServer:
    """提供的东西；同一个对象服务所有的客户端。"""

    def __init__(self, *, name: str = "miniclaw", tools: Iterable[RegistryTools] = ()) -> None:
        self._about = {"capabilities": {"tools": {}}, "serverInfo": {"name": name, "version": "0.1.0"}}
        self._tools = tuple(tools)

    async def handle(self, call: Call) -> dict[str, Any]:
        """一个请求的结果；不行就抛 `MCPError`。"""
        method, params, session = call.request.method, call.request.params, call.session
        if method == "initialize":
            wanted = params.get("protocolVersion")  # 不认识的，报我们最新的，走不走由它
            session.version = wanted if wanted in HANDSHAKE else HANDSHAKE[0]
            return {"protocolVersion": session.version, **self._about}
        if method == "ping":
            return {}
        if session.version is None:
            raise MCPError(INVALID_PARAMS, "Send `initialize` first.")
        if method == "tools/list":
            return {"tools": [row for each in self._tools for row in await each.list_tools(call)]}
        if method != "tools/call":
            raise MCPError(protocol.METHOD_NOT_FOUND, f"There is no method `{method}`.")
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise MCPError(INVALID_PARAMS, "`name` must be a string and `arguments` an object.")
        for each in self._tools:
            if (result := await each.call_tool(name, arguments, call)) is not None:
                return result
        raise MCPError(INVALID_PARAMS, f"There is no tool `{name}`.")


class Session:
    """一个客户端的连接。请求各跑各的，慢的工具不挡 `ping`。"""

    def __init__(self, server: MCPServer, send: Send) -> None:
        self.version: str | None = None  # 握手谈好的版本
        self._server, self._send = server, send
        self._running: set[asyncio.Task[None]] = set()

    def receive(self, message: Message, send: Send | None = None) -> asyncio.Task[None] | None:
        """收下一条消息；请求返回正在回答它的任务，别的不用回答。"""
        if not isinstance(message, Request):
            return None
        task = asyncio.get_running_loop().create_task(self._answer(message, send or self._send))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _answer(self, request: Request, send: Send) -> None:
        try:
            if len(self._running) > MAX_CALLS:
                raise MCPError(protocol.INVALID_REQUEST, "Too many requests at once; wait for some answers.")
            result = await self._server.handle(Call(self, request))
            send(protocol.encode({"id": request.id, "result": result}))
        except MCPError as error:
            send(protocol.encode_error(request.id, error))
        except Exception:
            logger.exception("the request %s broke its handler", request.method)
            broken = MCPError(protocol.INTERNAL_ERROR, "Something broke inside the server.")
            send(protocol.encode_error(request.id, broken))

    async def close(self, *, grace: float = 0.0) -> None:
        """给还在跑的 `grace` 秒，然后取消，等它们收拾完。"""
        if tasks := [*self._running]:
            await asyncio.wait(tasks, timeout=grace)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
