"""到一个服务器的线：一个子进程的标准输入输出，或者一个 URL。"""

import asyncio
import itertools
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import aiohttp

from day8_mcp.protocol import MCPError, MCPUnavailable, Message, Request, Response, decode, encode

logger = logging.getLogger(__name__)
MAX_LINE: Final = 2**24
KINDS: Final = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
END_SECONDS: Final = 2.0  # 关掉它的输入以后等多久，再用信号
PASSED_ON: Final = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "SYSTEMROOT", "TEMP")  # 别的可能是密钥


class StdioLink:
    """一个子进程，一行一条消息；它的标准错误直接给人看。"""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], name: str = "") -> None:
        self._command, self._name = command, name or command[0]
        self._env = {key: os.environ[key] for key in PASSED_ON if key in os.environ} | dict(env)
        self._process: Process | None = None
        self._pending, self._rubbish = dict[str, asyncio.Future[Response]](), itertools.count()

    async def start(self) -> None:
        given: dict[str, Any] = {"stdin": PIPE, "stdout": PIPE, "limit": MAX_LINE, "env": self._env}
        try:
            self._process = await create_subprocess_exec(*self._command, start_new_session=True, **given)
        except (OSError, ValueError) as error:
            raise MCPUnavailable(f"`{self._command[0]}` cannot be started: {error}.") from error
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: Process) -> None:
        """读到它关掉输出为止；还在等的，到这里就等不到了。"""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                await asyncio.sleep(0)  # 缓冲里有的是的时候，读不会等：给别人让路
                try:
                    message = decode(line)
                except MCPError:
                    if next(self._rubbish) < 3:  # 它可以一直印，记头几行
                        logger.warning("%s prints what is no message: %.100r", self._name, line[:100])
                    continue
                future = self._pending.pop(str(message.id), None) if isinstance(message, Response) else None
                if isinstance(message, Response) and future and not future.done():
                    future.set_result(message)
        except ValueError:  # 一行太长，这条线就废了
            logger.warning("%s writes a line of more than %d bytes; it is ended", self._name, MAX_LINE)
            _kill(process)
        finally:
            for future in (one for one in self._pending.values() if not one.done()):
                future.set_exception(MCPUnavailable(f"The server {self._name} ended without an answer."))

    async def exchange(self, request: Request, headers: Mapping[str, str]) -> dict[str, Any]:
        """发一个请求，等它的结果；`headers` 只对 HTTP 有用。"""
        future = self._pending[str(request.id)] = asyncio.get_running_loop().create_future()
        try:
            await self.send(encode({"id": request.id, "method": request.method, "params": request.params}))
            return unpacked(await future)
        finally:
            self._pending.pop(str(request.id), None)

    async def send(self, message: bytes) -> None:
        if self._process is None or self._process.stdin is None or self._reading.done():
            raise MCPUnavailable(f"The server {self._name} does not run.")
        self._process.stdin.write(message + b"\n")
        with suppress(ConnectionError):  # 它死了，读的任务会说
            await self._process.stdin.drain()

    async def close(self) -> None:
        """先关它的输入，等一会儿，再不走就连它生的进程一起结束。"""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        for seconds in (END_SECONDS, 5 + END_SECONDS):  # 收了尸再拆线：拆线会抢着收，返回码就丢了
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while process.returncode is None:  # noqa: ASYNC110 - `wait()` 还等它的输出关上
                        await asyncio.sleep(0.01)
            _kill(process)
        await asyncio.wait({self._reading}, timeout=END_SECONDS)
        self._reading.cancel()  # 输出也许还在别的进程手里，也许还剩很多：不等了
        process._transport.close()  # type: ignore[attr-defined] # 只有它关得上管道
        await asyncio.wait({self._reading})


def _kill(process: Process) -> None:
    """连它生的进程一起；已经走了就算了。"""
    with suppress(ProcessLookupError, PermissionError):
        process.kill() if sys.platform == "win32" else os.killpg(process.pid, signal.SIGKILL)


class HttpLink:
    """一个 URL，一条消息一个 POST；回答是 JSON，或者一条事件流。"""

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None) -> None:
        self._url, self._headers = url, {**(headers or {}), **KINDS}
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_connect=20), read_bufsize=2**20)

    async def exchange(self, request: Request, headers: Mapping[str, str]) -> dict[str, Any]:
        self._headers |= headers
        body = encode({"id": request.id, "method": request.method, "params": request.params})
        async for message in self._post(body):
            if isinstance(message, Response) and message.id == request.id:
                return unpacked(message)
        raise MCPUnavailable("The server ended its answer without a result.")

    async def send(self, message: bytes) -> None:
        _ = [answer async for answer in self._post(message)]

    async def _post(self, body: bytes) -> AsyncIterator[Message]:
        if self._http is None or self._http.closed:
            raise MCPUnavailable("The connection was closed.")
        try:
            given: dict[str, Any] = {"headers": self._headers, "allow_redirects": False}  # 头里有密钥
            async with self._http.post(self._url, data=body, **given) as reply:
                if reply.status >= 300:
                    reason, body = ".", await reply.read()
                    with suppress(MCPError, AttributeError, LookupError, TypeError):  # 这种编号可以是 null
                        reason = f": {decode(body).error['message']}"  # type: ignore[union-attr]
                    raise MCPUnavailable(f"{self._url} answered {reply.status}{reason}")
                if session_id := reply.headers.get("Mcp-Session-Id"):
                    self._headers["Mcp-Session-Id"] = session_id
                if reply.content_type == "text/event-stream":
                    data = b""
                    async for line in reply.content:
                        if line.startswith(b"data:"):
                            data += line[5:]
                        elif not line.strip() and data.strip():  # 空行：几行 `data:` 是一个事件
                            yield decode(data)
                            data = b""
                elif reply.content_type == "application/json" and reply.status != 202:
                    yield decode(await reply.read())
        except (aiohttp.ClientError, ValueError) as error:
            raise MCPUnavailable(f"{self._url} cannot be reached ({type(error).__name__}).") from error

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


def unpacked(response: Response) -> dict[str, Any]:
    """结果；没成就抛 `MCPError`。"""
    if response.error is None and isinstance(response.result, dict):
        return response.result
    error = response.error if isinstance(response.error, dict) else {}
    code, reason = error.get("code"), error.get("message") or "The server gave no reason."
    raise MCPError(code if isinstance(code, int) else 0, str(reason))
