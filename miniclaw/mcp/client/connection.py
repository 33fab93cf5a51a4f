"""One connection to a server: finding out the wire, asking on it, and answering what is asked back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self

from miniclaw.errors import MCPError, MCPUnavailable
from miniclaw.mcp.client.calls import Calls, Progress
from miniclaw.mcp.client.host import Host
from miniclaw.mcp.client.link import Link
from miniclaw.mcp.headers import NAMED, encode_value, mirrored_headers
from miniclaw.mcp.protocol import (
    HANDSHAKE,
    INVALID_REQUEST,
    META_SERVER,
    MODERN,
    UNSUPPORTED_VERSION,
    encode_notification,
)
from miniclaw.mcp.rounds import ASKING

__all__ = ["Connection", "Era"]

logger = logging.getLogger(__name__)

Era = Literal["auto", "modern", "handshake"]

PROBE_SECONDS: Final = 10.0
"""How long a server may be silent about a method that it may not know."""
MAX_ROUNDS: Final = 10
"""How often one call may ask back on the modern wire."""
_OLD: Final = "2025-03-26"
"""Taken from a server that insists; we answer to it as a client, where batches are all that it adds."""


class Connection:
    """Finds out the wire, asks and is asked.

    Args:
        link: makes a new link; called again where the first one did not survive finding out the wire.
        name: what the server is called in the log.
        era: the wire; `auto` tries the modern one first.
        host: who answers the server's questions, unless a call names another.
        start_seconds: how long connecting may take, with the start of the program.
        call_seconds: how long a request may go without an answer or a sign of progress.
        changed: told `tools`, `prompts` or `resources` when such a list is another one now.

    Attributes:
        version: the agreed revision.
        capabilities: what the server declared.
        info: the server's name and version as it gives them.
        instructions: what the server says of itself to the model.
    """

    def __init__(
        self,
        link: Callable[[], Link],
        *,
        name: str = "",
        era: Era = "auto",
        host: Host | None = None,
        start_seconds: float = 60.0,
        call_seconds: float = 60.0,
        changed: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.version = ""
        self.capabilities: Mapping[str, Any] = {}
        self.info: Mapping[str, Any] = {}
        self.instructions = ""
        self._make = link
        self._era = era
        self._start_seconds = start_seconds
        self._calls = Calls(name, host or Host(), seconds=call_seconds, changed=changed)
        self._link: Link | None = None
        self.mirrors: dict[str, dict[tuple[str, ...], str]] = {}
        self._again = asyncio.Lock()

    async def __aenter__(self) -> Self:
        try:
            await self._within(self._connect())
        except BaseException:
            await self.close()
            raise
        return self

    async def _within(self, connecting: Coroutine[Any, Any, None]) -> None:
        """Wait for a connection at most as long as the start may take."""
        try:
            async with asyncio.timeout(self._start_seconds):
                await connecting
        except TimeoutError:
            text = f"The server did not answer within {self._start_seconds:g} s of its start."
            raise MCPUnavailable(text) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection; may be called again."""
        await self._calls.close()
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    @property
    def is_modern(self) -> bool:
        """Whether there is no handshake."""
        return self.version == MODERN

    async def ended(self) -> MCPUnavailable:
        """Wait until the connection is of no more use, and tell why."""
        return await asyncio.shield(self.link.closed)

    def __str__(self) -> str:
        return self._calls.name

    @property
    def link(self) -> Link:
        """The link in use.

        Raises:
            MCPUnavailable: there is none.
        """
        if self._link is None:
            raise MCPUnavailable("There is no connection to the server.")
        return self._link

    async def _connect(self) -> None:
        await self._begin()
        if self._era != "handshake" and await self._is_modern():
            self._calls.watch(self.capabilities)
            return
        if self._era == "modern":
            raise MCPUnavailable(f"The server does not speak {MODERN}; set `era` to `auto`.")
        if self.link.closed.done():
            await self._begin()
        await self._shake_hands()

    async def _begin(self) -> None:
        """A fresh link."""
        if self._link is not None:
            await self._link.close()
        self._link = self._make()
        self._calls.attach(self._link)
        await self._link.start()

    async def _is_modern(self) -> bool:
        """Ask in the modern way; anything but a fitting answer means that the server does not know it."""
        link = self.link
        self._calls.version = self.version = link.version = MODERN
        for _ in range(2):
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    result = await self.request("server/discover")
            except TimeoutError:
                await self._begin()
                return False
            except MCPUnavailable as error:
                if error.needs_login or (link.has_headers and not _is_refusal(error.status)):
                    raise
                return False
            except MCPError as error:
                supported = (error.data or {}).get("supported")
                if error.code == UNSUPPORTED_VERSION and _names_modern(supported):
                    continue
                return False
            break
        else:
            return False
        if not _names_modern(result.get("supportedVersions")):
            return False
        meta = result.get("_meta")
        info = meta.get(META_SERVER) if isinstance(meta, dict) else None
        self._learn(result, info or result.get("serverInfo"))
        return True

    async def _shake_hands(self) -> None:
        link = self.link
        self._calls.version = self.version = link.version = ""
        result = await self._calls.once(
            "initialize",
            {
                "protocolVersion": HANDSHAKE[0],
                "capabilities": self._calls.host.capabilities,
                "clientInfo": self._calls.client_info,
            },
            {},
        )
        version = result.get("protocolVersion")
        if version not in (*HANDSHAKE, _OLD):
            raise MCPUnavailable(
                f"The server speaks revision {version}; this client speaks {MODERN}, {', '.join(HANDSHAKE)}."
            )
        self._calls.version = self.version = link.version = str(version)
        self._learn(result, result.get("serverInfo"))
        await link.send(encode_notification("notifications/initialized"))
        await link.listen()

    def _learn(self, result: Mapping[str, Any], info: object) -> None:
        declared, said = result.get("capabilities"), result.get("instructions")
        self.capabilities = declared if isinstance(declared, dict) else {}
        self._calls.logs = "logging" in self.capabilities
        self.info = info if isinstance(info, dict) else {}
        self.instructions = said if isinstance(said, str) else ""

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        progress: Progress | None = None,
        host: Host | None = None,
    ) -> dict[str, Any]:
        """Ask, and answer what the server asks back, until there is a result."""
        sent = dict(params or {})
        for _ in range(MAX_ROUNDS):
            result = await self._alive(method, sent, progress, host)
            kind = result.get("resultType", "complete")
            if not self.is_modern or kind == "complete":
                return result
            if kind != "input_required" or method not in ASKING:
                raise MCPError(
                    INVALID_REQUEST, f"The server gave a result of the unknown type {kind!r:.100}."
                )
            questions = result.get("inputRequests")
            sent = {**(params or {}), "inputResponses": await self._calls.answer_all(questions, host)}
            if "requestState" in result:
                sent["requestState"] = result["requestState"]
        raise MCPError(INVALID_REQUEST, f"The server asked back more than {MAX_ROUNDS} times.")

    async def _alive(
        self, method: str, params: dict[str, Any], progress: Progress | None, host: Host | None
    ) -> dict[str, Any]:
        """Ask once; in a new session where the server has forgotten the old one."""
        async with self._again:  # a new session that is being begun is waited for
            link = self.link
            session = getattr(link, "session", None)
        try:
            return await self._calls.once(method, params, self._headers(method, params), progress, host)
        except MCPUnavailable as error:
            if not session or error.status != 404 or self.is_modern:
                raise
        async with self._again:
            if getattr(link, "session", None) == session:  # else another call has done it
                await self._within(self._shake_hands())
        return await self._calls.once(method, params, self._headers(method, params), progress, host)

    def _headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        if not self.is_modern:
            return {}
        headers = {"Mcp-Method": method}
        if method in NAMED:
            headers["Mcp-Name"] = encode_value(str(params.get(NAMED[method])))
        if method == "tools/call":
            wanted = self.mirrors.get(str(params.get("name")), {})
            headers |= mirrored_headers(wanted, params.get("arguments") or {})
        return headers


def _names_modern(versions: object) -> bool:
    return isinstance(versions, list) and MODERN in versions


def _is_refusal(status: int | None) -> bool:
    """Whether an HTTP status may mean that the wire is not known, and not that the server is out of order."""
    return status is not None and 400 <= status < 500 and status not in (401, 403, 407, 408, 429)
