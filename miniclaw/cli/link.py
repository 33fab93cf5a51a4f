"""The terminal's end of a conversation: inside this process, or over a WebSocket; both look the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from miniclaw.app import MiniClaw
from miniclaw.config import LoadedSettings
from miniclaw.errors import ConfigError, DirectoryBusy
from miniclaw.rundir import RunDir

__all__ = ["Link", "open_link"]

ATTEMPTS: Final = 50
ATTEMPT_SECONDS: Final = 0.2
"""How often it is looked again when another process has the directory and does not listen."""


class Link(Protocol):
    """Frames to and from a gateway."""

    async def send(self, frame: dict[str, Any]) -> None:
        """Send one frame."""
        ...

    def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Frames from the gateway until it closes."""
        ...


class _SocketLink:
    """A link over a WebSocket."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def send(self, frame: dict[str, Any]) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._socket.send(json.dumps(frame))
        except ConnectionClosed as error:
            raise ConfigError(
                "The gateway closed the connection; start it again and use --resume."
            ) from error

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            async for frame in self._socket:
                yield json.loads(frame)


@contextlib.asynccontextmanager
async def open_link(
    loaded: LoadedSettings, *, connect: str | None, user_id: str, workspace: str | None = None
) -> AsyncIterator[tuple[Link, str, bool]]:
    """A link, a word on where it leads, and whether that is another process.

    With `connect` to that URL; else to the gateway that runs on the data directory; else to a gateway of
    this process's own, which alone can have a `workspace` of this start.

    Raises:
        ConfigError: the gateway cannot be reached, refuses the token, or has its own workspaces.
    """
    async with contextlib.AsyncExitStack() as stack:
        for left in reversed(range(ATTEMPTS)):
            try:
                opened = await _open(stack, loaded, connect, user_id, workspace)
                break
            except DirectoryBusy:
                # Whoever has the directory may be about to listen, or to end.
                if not left:
                    raise
                await asyncio.sleep(ATTEMPT_SECONDS)
        yield opened


async def _open(
    stack: contextlib.AsyncExitStack,
    loaded: LoadedSettings,
    connect: str | None,
    user_id: str,
    workspace: str | None,
) -> tuple[Link, str, bool]:
    running = None if connect else RunDir(loaded.data_dir).running()
    if running is not None and running.gateway_port is None:
        raise ConfigError(
            "The miniclaw that runs on this data directory was started with --gateway-port none, so nothing "
            "can attach to it; start it with a gateway, or choose another --data-dir."
        )
    if running is not None and user_id != "owner":
        raise ConfigError("--user-id does not go with a gateway that is running; its tokens say who you are.")
    if workspace and (connect or running is not None):
        raise ConfigError(
            f"--workspace does not go with a gateway that is running; set `[users.{user_id}] workspace` there."
        )
    if connect or running is not None:
        configured = loaded.settings.gateway.token
        token = configured.get_secret_value() if configured else ""
        url = connect or f"ws://127.0.0.1:{running.gateway_port if running else 0}/"
        socket = await stack.enter_async_context(_connect(url, running.token if running else token))
        return _SocketLink(socket), url, True
    port = {"gateway": loaded.settings.gateway.model_copy(update={"port": 0})}
    settings = loaded.settings.model_copy(update=port)
    own = LoadedSettings(settings=settings, data_dir=loaded.data_dir, origins=loaded.origins)
    claw = await stack.enter_async_context(MiniClaw(own, web=False))
    await claw.identities.ensure(user_id)
    link = claw.terminal.link(user_id)
    stack.push_async_callback(link.aclose)
    model = claw.provider.info
    return link, model.name + (" (demo)" if model.demo else ""), False


@contextlib.asynccontextmanager
async def _connect(url: str, token: str) -> AsyncIterator[Any]:
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidURI

    headers = {} if "token=" in urlsplit(url).query or not token else {"Authorization": f"Bearer {token}"}
    try:
        socket = await connect(
            url, additional_headers=headers, compression=None, proxy=None, open_timeout=10, close_timeout=1
        )
    except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
        raise ConfigError(f"The gateway at {url.partition('?')[0]} cannot be reached: {error}.") from error
    try:
        yield socket
    finally:
        await socket.close()
