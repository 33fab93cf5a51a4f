"""到一个服务器的线：一个子进程的标准输入输出，或者一个 URL。"""

import asyncio
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
        self._pending: dict[str, asyncio.Future[Response]] = {}

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
                try:
                    message = decode(line)
                except MCPError:
                    logger.warning("%s prints what is no message: %.100r", self._name, line)
                    continue
                future = self._pending.pop(str(message.id), None) if isinstance(message, Response) else None
                if isinstance(message, Response) and future and not future.done():
                    future.set_result(message)
        except ValueError:  # 一行太长，这条线就废了
            logger.warning("%s writes a line of more than %d bytes; it is ended", self._name, MAX_LINE)
            _kill(process)
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
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS)
        _kill(process)
        await asyncio.wait({self._reading}, timeout=END_SECONDS)
        process._transport.close()  # type: ignore[attr-defined] # 输出也许还在别的进程手里：不等它放手
        await asyncio.gather(process.wait(), self._reading)


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
            async with self._http.post(self._url, data=body, headers=self._headers) as response:
                if session_id := response.headers.get("Mcp-Session-Id"):
                    self._headers["Mcp-Session-Id"] = session_id
                if response.content_type == "text/event-stream":
                    async for line in response.content:
                        if line.startswith(b"data:") and line[5:].strip():
                            yield decode(line[5:])
                elif response.content_type == "application/json" and response.status != 202:
                    yield decode(await response.read())
                elif response.status >= 400:
                    raise MCPUnavailable(f"{self._url} answered {response.status}.")
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
