"""The trace: what each turn did, one record a model call and a tool call, as JSON Lines in a file a turn.

Records are kept in memory and written by a thread, once a second at most; after a crash the last are lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from miniclaw.agent.masking import mask
from miniclaw.agent.providers import ToolCall
from miniclaw.config import Clock
from miniclaw.memory.context import Layer
from miniclaw.memory.tokens import estimate_tokens
from miniclaw.session.models import Turn, Usage
from miniclaw.settings import TraceSettings
from miniclaw.tools.base import ToolResult

__all__ = ["TraceStore", "TurnTrace", "find_trace", "read_trace"]

logger = logging.getLogger(__name__)
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode

FLUSH_SECONDS: Final = 1.0
FLUSH_RECORDS: Final = 64
"""Records that are not kept waiting any longer."""
MOST_BUFFERED: Final = 10_000
"""Records that wait to be written; further ones are dropped."""
TEXT_CHARS: Final = 2_000
"""What a record keeps of a result or of an argument that is no object."""
DYNAMIC_LAYERS: Final = frozenset({"summary", "memory", "hint", "date"})
"""Layers of the system prompt that change from turn to turn and are no part of its version."""


_MEMORY_ID: Final = re.compile(r"mem_[a-z0-9]{1,64}")


def find_trace(directory: Path, turn_id: str | None) -> Path | None:
    """The file of a turn, or the newest of all; `None` = there is none."""
    if turn_id is not None and not re.fullmatch(r"\w+", turn_id):
        return None
    for day in sorted(directory.glob("????-??-??"), reverse=True):
        if found := list(day.glob(f"{turn_id or '*'}.jsonl")):
            return max(found, key=lambda path: path.stat().st_mtime_ns)
    return None


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The records; a last line that a crash cut off is left out."""
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


class TraceStore:
    """Writes `traces/<day>/<turn>.jsonl` and keeps as many days as it is told."""

    def __init__(self, directory: Path, settings: TraceSettings, *, secrets: set[str], clock: Clock) -> None:
        self._directory = directory
        self._settings = settings
        self._secrets = sorted((json.dumps(word)[1:-1] for word in secrets), key=len, reverse=True)
        self.clock = clock
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._day = ""

    def add(self, turn_id: str, record: dict[str, Any]) -> None:
        """Take a record; it is in the file about a second later."""
        if not self._settings.enabled or len(self._waiting) >= MOST_BUFFERED:
            return
        self._waiting.append((turn_id, record))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)
        elif len(self._waiting) >= FLUSH_RECORDS and self._writing is None:
            self._timer.cancel()
            self._flush()

    async def remove(self, turn_ids: Collection[str]) -> None:
        """Delete what is kept of these turns, also what is not written yet."""
        self._waiting = [(turn_id, record) for turn_id, record in self._waiting if turn_id not in turn_ids]
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await asyncio.to_thread(self._remove, turn_ids)

    def _remove(self, turn_ids: Collection[str]) -> None:
        for day in self._directory.glob("????-??-??"):
            for turn_id in turn_ids:
                (day / f"{turn_id}.jsonl").unlink(missing_ok=True)

    async def close(self) -> None:
        """Write what is left; may be called again."""
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting or self._writing is not None:
            if self._writing is None:
                self._flush()
            if self._writing is not None:
                await asyncio.wait([self._writing])

    async def read(self, turn_id: str) -> list[dict[str, Any]]:
        """The records of a turn that was run here, after they are written; none of one without a trace."""
        while self._writing is not None or any(one == turn_id for one, _ in self._waiting):
            if self._writing is None:
                self._flush()
            elif self._writing is not None:
                await asyncio.wait([self._writing])
        path = await asyncio.to_thread(find_trace, self._directory, turn_id)
        return await asyncio.to_thread(read_trace, path) if path is not None else []

    def _flush(self) -> None:
        self._timer = None
        if self._writing is not None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)
            return
        records, self._waiting = self._waiting, []
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, records)
        self._writing.add_done_callback(self._written)

    def _written(self, future: asyncio.Future[None]) -> None:
        self._writing = None
        if not future.cancelled() and (error := future.exception()) is not None:
            logger.warning("the trace could not be written: %s", error)

    def _write(self, records: list[tuple[str, dict[str, Any]]]) -> None:
        today = f"{datetime.fromtimestamp(self.clock(), UTC):%Y-%m-%d}"
        folder = self._directory / today
        if today != self._day:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._forget(today)
            self._day = today
        lines: dict[str, list[str]] = {}
        for turn_id, record in records:
            lines.setdefault(turn_id, []).append(_encode(record))
        for turn_id, found in lines.items():
            text = mask("\n".join(found), self._secrets) + "\n"
            # Not `open`, which takes ten times as long: there is a file a turn.
            file = os.open(f"{folder}/{turn_id}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, text.encode("utf-8", "replace"))
            finally:
                os.close(file)

    def _forget(self, today: str) -> None:
        oldest = f"{datetime.fromisoformat(today) - timedelta(days=self._settings.keep_days - 1):%Y-%m-%d}"
        for day in self._directory.glob("????-??-??"):
            if day.name < oldest:
                shutil.rmtree(day, ignore_errors=True)


class TurnTrace:
    """The records of one turn; without a store they go nowhere, and calls are logged all the same."""

    def __init__(self, turn: Turn | None = None, store: TraceStore | None = None) -> None:
        self._turn = turn
        self._store = store
        self._version = ""
        self._purpose = "answer"

    def part(self, purpose: str, layers: Sequence[Layer], *, schemas: int = 0) -> TurnTrace:
        """The trace of a part of the turn that has a prompt of its own, which is recorded.

        Args:
            purpose: what it is for.
            layers: the prompt.
            schemas: what the tools that are sent beside it cost, in tokens.
        """
        part = TurnTrace(self._turn, self._store)
        fixed = "\n\n".join(layer.text for layer in layers if layer.name not in DYNAMIC_LAYERS)
        part._version = hashlib.sha256(fixed.encode("utf-8", "replace")).hexdigest()[:8]
        part._purpose = purpose
        part._add(
            "prompt", purpose=purpose, prompt=part._version, layers=[*map(_shown, layers)], schemas=schemas
        )
        return part

    def model(self, usage: Usage, *, error: str | None, **more: Any) -> None:
        """Record and log a model call."""
        shown = usage.to_dict()
        session_id = self._turn.session_id if self._turn else ""
        logger.info(
            "model %s for %s in session %s: %s in, %s out, %d ms, %s",
            *(usage.model, self._purpose, session_id, usage.input_tokens, usage.output_tokens, usage.ms),
            error or "ok",
            extra={"session_id": session_id, "turn_id": self._turn.turn_id if self._turn else ""},
        )
        self._add("model", purpose=self._purpose, prompt=self._version, **shown, error=error, **more)

    def tool(self, call: ToolCall, result: ToolResult, ms: int) -> None:
        """Record a tool call."""
        arguments: Any = call.raw[:TEXT_CHARS]
        if call.arguments is not None and len(call.raw) <= TEXT_CHARS:
            arguments = call.arguments
        found = result.content[:TEXT_CHARS]
        if call.name.startswith("memory_"):  # what is forgotten must not stay here
            arguments, found = _left_out(call.raw), _left_out(result.content)
        self._add(
            "tool",
            purpose=self._purpose,
            name=call.name,
            call_id=call.id,
            arguments=arguments,
            ok=result.ok,
            ms=ms,
            error=result.error and result.error[:TEXT_CHARS],
            result=found,
        )

    def _add(self, kind: str, **record: Any) -> None:
        if self._turn is None or self._store is None:
            return
        turn = self._turn
        head = {"kind": kind, "at": round(self._store.clock(), 3), "turn_id": turn.turn_id}
        head |= {"session_id": turn.session_id, "user_id": turn.user_id, "attempt": turn.attempt}
        self._store.add(turn.turn_id, {**head, **record})


def _shown(layer: Layer) -> dict[str, Any]:
    if layer.name != "memory":
        return {"name": layer.name, "text": layer.text}
    return {"name": layer.name, "text": _left_out(layer.text), "tokens": estimate_tokens(layer.text)}


def _left_out(text: str) -> str:
    """What stands for remembered words, which are kept in their own files alone: the ids, and how long they were."""
    return f"({len(text)} characters of memory: {', '.join(dict.fromkeys(_MEMORY_ID.findall(text)))})"
