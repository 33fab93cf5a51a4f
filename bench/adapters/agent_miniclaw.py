"""The agent runtime as a target of the turn harness: history stored on disk, every step durable."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from miniclaw.agent.openai_provider import OpenAIProvider
from miniclaw.app import MiniClaw
from miniclaw.config import load_settings
from miniclaw.session.models import Entry


class Target:
    """One gateway without sockets; a turn goes the whole way from ingress to its committed end."""

    async def setup(self, base_url: str, model: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="miniclaw-bench-"))
        self._provider = OpenAIProvider(model, api_key="x", base_url=base_url)
        loaded = load_settings(env={}, data_dir=str(self._directory))
        self._stack = AsyncExitStack()
        claw = MiniClaw(loaded, provider=self._provider, gateway=False, web=False)
        self._claw = await self._stack.enter_async_context(claw)
        self._sessions: dict[str, str] = {}

    async def seed(self, sid: str, messages: list[dict[str, Any]]) -> None:
        session = await self._claw.sessions.get_or_create("owner", "library")
        entries = [Entry(f"turn_seed{number}", 0, message) for number, message in enumerate(messages)]
        await self._claw.sessions.append(session, entries)
        self._sessions[sid] = session.session_id

    async def turn(self, sid: str, text: str) -> tuple[str, int]:
        deltas, final = 0, ""
        async for event in self._claw.ask(text, session_id=self._sessions.get(sid)):
            if event["name"] == "text.delta":
                deltas += 1
            elif event["name"] == "turn.finished":
                final = event["data"]["text"]
                self._sessions[sid] = event["session_id"]
            elif event["name"] == "turn.failed":
                raise RuntimeError(event["data"]["message"])
        return final, deltas

    async def close(self) -> None:
        await self._stack.aclose()
        await self._provider.close()
        shutil.rmtree(self._directory)
