"""把服务器接到线上：标准输入输出，或者 HTTP 的一个路径。"""

import asyncio
import os
import re
import sys
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Final

from aiohttp import web

from day8_mcp.protocol import HANDSHAKE, INVALID_REQUEST, MCPError, decode, encode_error
from day8_mcp.server import MCPServer, Session

MAX_LINE: Final = 4 * 1024 * 1024
LOCAL: Final = re.compile(r"https?://(localhost|127\.0\.0\.1)(:\d+)?")  # 本机的网页


def take_stdio() -> tuple[int, int]:
    """把标准输入输出收归己有：别人的 `print` 改去标准错误，不会混进协议里。"""
    source, target = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return source, target


async def serve_stdio(server: MCPServer, source: int, target: int) -> None:
    """服务这一个客户端，一行一条消息，直到它关掉 `source`。"""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes] = asyncio.Queue(16)

    def read() -> None:  # 守护线程：它卡在读上的时候，进程照样能退出
        with suppress(RuntimeError, CancelledError):  # 循环已经关了
            with suppress(OSError), os.fdopen(source, "rb") as file:  # 终端没了，也是输入结束
                while line := file.readline(MAX_LINE):
                    asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
            asyncio.run_coroutine_threadsafe(lines.put(b""), loop).result()

    def send(message: bytes) -> None:  # 只有一个客户端：它不读，我们就等
        data = message + b"\n"
        with suppress(OSError):  # 它走了；输入也快结束了
            while data:
                data = data[os.write(target, data) :]

    session = Session(server, send)
    threading.Thread(target=read, daemon=True).start()
    try:
        while line := await lines.get():
            try:
                session.receive(decode(line))
            except MCPError as error:
                send(encode_error(None, error))
    finally:
        await session.close(grace=0.5)  # 输入结束时，还在跑的请求再给半秒


class McpHttp:
    """Streamable HTTP 的一个路径：一个 POST 一条消息，回答是普通的 JSON；不记会话，每条消息自己站得住。"""

    def __init__(self, server: MCPServer) -> None:
        self._server = server

    async def handle(self, request: web.Request, user: str) -> web.StreamResponse:
        """回答一个已经验明身份的请求；从别的网页来的一律不收。"""
        if not LOCAL.fullmatch(request.headers.get("Origin", "http://localhost")):
            return web.Response(status=403)
        if request.method != "POST":
            return web.Response(status=405, headers={"Allow": "POST"})
        answers: list[bytes] = []
        session = Session(self._server, answers.append)
        session.version = request.headers.get("MCP-Protocol-Version", "2025-03-26")  # 没写的，规定当成它
        try:
            if session.version not in (*HANDSHAKE, "2025-03-26"):
                raise MCPError(INVALID_REQUEST, f"The version {session.version[:40]} is not spoken here.")
            message = decode(await request.read())
            if (task := session.receive(message)) is not None:
                await asyncio.wait({task})
        except MCPError as error:
            return web.Response(status=400, body=encode_error(None, error), content_type="application/json")
        status, kind = (200, "application/json") if answers else (202, None)  # 通知没有回答
        return web.Response(status=status, body=b"".join(answers), content_type=kind)
