"""Whole gateways for tests: in this process, or as a real process that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from miniclaw.agent.providers import LLMProvider
from miniclaw.app import MiniClaw
from miniclaw.config import Clock, load_settings

TOKEN = "test-token"
GUARD = 30.0


@asynccontextmanager
async def running_claw(
    data_dir: Path,
    provider: LLMProvider | None = None,
    *,
    web: bool = False,
    arguments: Mapping[str, Any] | None = None,
    clock: Clock = time.time,
) -> AsyncIterator[MiniClaw]:
    """A gateway in this process, on free ports."""
    given = {"gateway.port": 0, "web.port": 0, "gateway.token": TOKEN, "model.probe_local": False}
    loaded = load_settings(env={}, data_dir=str(data_dir), arguments={**given, **(arguments or {})})
    async with MiniClaw(loaded, provider=provider, web=web, clock=clock) as claw:
        yield claw


def port_of(claw: MiniClaw) -> int:
    """The port of its raw gateway."""
    assert claw.gateway is not None and claw.gateway.port is not None
    return claw.gateway.port


class ServerProcess:
    """`miniclaw serve` as a real process."""

    def __init__(self, data_dir: Path, *, env: Mapping[str, str] | None = None) -> None:
        self._data_dir = data_dir
        self._env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "MINICLAW_"))},
            "MINICLAW_PROJECT": "",
            "MINICLAW_TOKEN": TOKEN,
            "MINICLAW_MODEL__PROBE_LOCAL": "false",
            **(env or {}),
        }
        self._process: asyncio.subprocess.Process | None = None
        self.gateway_port = 0
        self.web_port = 0
        self.address = ""
        """What it printed for the browser."""

    async def start(self) -> None:
        """Start it and wait until it listens; a second time on the same ports."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "miniclaw", "serve", "--data-dir", str(self._data_dir)),
            *("--port", str(self.web_port), "--gateway-port", str(self.gateway_port)),
            stdout=asyncio.subprocess.PIPE,
            env=self._env,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(GUARD):
            while line := (await self._process.stdout.readline()).decode():
                if line.startswith("web chat"):
                    self.address = line.split()[-1]
                    break
        ports = json.loads((self._data_dir / "run" / "gateway.json").read_text(encoding="utf-8"))
        self.gateway_port, self.web_port = ports["gateway_port"], ports["web_port"]

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process is not None
        return self._process.pid

    async def kill(self) -> None:
        """`kill -9`."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        return await self._end(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        """Send a signal and do not wait."""
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        assert self._process is not None
        async with asyncio.timeout(GUARD):
            code = await self._process.wait()
            assert self._process.stdout is not None
            await self._process.stdout.read()
        return code

    async def _end(self, number: int) -> int:
        self.send_signal(number)
        return await self.wait()


@asynccontextmanager
async def server_process(
    data_dir: Path, *, env: Mapping[str, str] | None = None
) -> AsyncIterator[ServerProcess]:
    """A started server, killed at the end if it still runs."""
    server = ServerProcess(data_dir, env=env)
    await server.start()
    try:
        yield server
    finally:
        if server._process is not None and server._process.returncode is None:
            await server.kill()
