"""A program that takes replies and write requests, checks them, and counts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

KEY = b"miniclaw-generic-webhook-secret!"
SECRET = "whsec_" + base64.b64encode(KEY).decode()


def signed_headers(
    body: bytes, *, message_id: str = "msg_1", key: bytes = KEY, at: float | None = None
) -> dict[str, str]:
    """Standard Webhooks headers, made independently of the code under test."""
    timestamp = str(int(time.time() if at is None else at))
    digest = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
        "Content-Type": "application/json",
    }


class Receiver:
    """Takes replies at `/reply` by a list of statuses, and counts what is written at `/write`.

    Attributes:
        taken: the bodies of replies that were answered with 200.
        tried: the `webhook-id` of every reply.
        writes: how often `/write` was posted to.
    """

    def __init__(self, statuses: list[int] | None = None) -> None:
        self.statuses = statuses or []
        self.taken: list[dict[str, Any]] = []
        self.tried: list[str] = []
        self.writes = 0
        self.got = asyncio.Semaphore(0)

    async def reply(self, request: web.Request) -> web.Response:
        raw = await request.read()
        expected = signed_headers(
            raw, message_id=request.headers["webhook-id"], at=float(request.headers["webhook-timestamp"])
        )
        assert expected["webhook-signature"] in request.headers["webhook-signature"].split()
        self.tried.append(request.headers["webhook-id"])
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            self.taken.append(json.loads(raw))
        self.got.release()
        return web.Response(status=status)

    async def write(self, request: web.Request) -> web.Response:
        self.writes += 1
        return web.Response(text="written")

    async def wait(self, tries: int) -> None:
        """Wait until so many more replies were tried."""
        async with asyncio.timeout(30):
            for _ in range(tries):
                await self.got.acquire()


@asynccontextmanager
async def receiving(receiver: Receiver, port: int = 0) -> AsyncIterator[int]:
    """The receiver on a port."""
    app = web.Application()
    app.router.add_post("/reply", receiver.reply)
    app.router.add_post("/write", receiver.write)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
