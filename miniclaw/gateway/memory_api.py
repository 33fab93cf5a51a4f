"""`/api/memories`: what is remembered of the user who asks, and nobody else."""

from __future__ import annotations

import sys
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from miniclaw.gateway.http import json_response, read_json, user_of
from miniclaw.gateway.memory_actions import MemoryActions
from miniclaw.memory.long_term import LongTermMemory
from miniclaw.memory.models import Category

__all__ = ["MemoryApi"]


class _Change(BaseModel):
    model_config = ConfigDict(extra="forbid")
    content: str | None = Field(default=None, min_length=1, max_length=4000)
    context: str | None = Field(default=None, max_length=2000)
    memory_type: str | None = None
    category: Category | None = None
    key: str | None = None
    expires_at: str | None = None


class _Save(_Change):
    content: str = Field(min_length=1, max_length=4000)
    supersedes: str | None = None
    """The memory whose place it takes."""


class _Update(_Change):
    expected_updated_at: str | None = None


class _Import(BaseModel):
    model_config = ConfigDict(extra="forbid")
    memories: list[dict[str, Any]]


class MemoryApi:
    """Handlers that list, search, save, change, delete, export, import and clear."""

    def __init__(self, memory: LongTermMemory) -> None:
        self._memory = memory
        self._actions = MemoryActions(memory)

    def table(self) -> list[tuple[str, str, Any]]:
        """Method, path and handler of each route."""
        return [
            ("GET", "/api/memories", self.list),
            ("POST", "/api/memories", self.save),
            ("DELETE", "/api/memories", self.clear),
            ("GET", "/api/memories/export", self.export),
            ("POST", "/api/memories/import", self.import_),
            ("GET", "/api/memories/{id}", self.show),
            ("PATCH", "/api/memories/{id}", self.update),
            ("POST", "/api/memories/{id}/confirm", self.confirm),
            ("DELETE", "/api/memories/{id}", self.delete),
        ]

    async def list(self, request: web.Request) -> web.Response:
        """The user's memories, or those that fit `query`."""
        query = request.query.get("query", "")
        return json_response(await self._actions.list(user_of(request), query, 50 if query else sys.maxsize))

    async def save(self, request: web.Request) -> web.Response:
        """Save a memory that the user wrote; `similar` is what it seems to repeat or contradict."""
        body: _Save = await read_json(request, _Save)
        fields, user_id = body.model_dump(exclude_none=True, exclude={"supersedes"}), user_of(request)
        if body.supersedes is not None:
            await self._actions.get(user_id, body.supersedes)
        saved = await self._actions.save(user_id, **fields)
        if body.supersedes not in (None, saved["memory_id"]):
            await self._memory.supersede(user_id, body.supersedes, by=saved["memory_id"])
        return json_response(saved, status=201)

    async def show(self, request: web.Request) -> web.Response:
        """One memory."""
        record = await self._actions.get(user_of(request), request.match_info["id"])
        return json_response(record.model_dump(mode="json"))

    async def update(self, request: web.Request) -> web.Response:
        """Change what the body names; with `expected_updated_at` only if nobody came between."""
        body: _Update = await read_json(request, _Update)
        user_id, memory_id = user_of(request), request.match_info["id"]
        await self._actions.get(user_id, memory_id)
        record = await self._memory.update(user_id, memory_id, **body.model_dump(exclude_none=True))
        return json_response(record.model_dump(mode="json"))

    async def confirm(self, request: web.Request) -> web.Response:
        """Say yes to a proposed memory."""
        return json_response(await self._actions.confirm(user_of(request), request.match_info["id"]))

    async def delete(self, request: web.Request) -> web.Response:
        """Delete one memory."""
        await self._actions.delete(user_of(request), request.match_info["id"])
        return json_response({"deleted": True})

    async def export(self, request: web.Request) -> web.Response:
        """Everything, as `import` takes it."""
        return json_response({"memories": await self._memory.export(user_of(request))})

    async def import_(self, request: web.Request) -> web.Response:
        """Store exported memories; all or none."""
        body: _Import = await read_json(request, _Import)
        return json_response({"imported": await self._memory.import_(user_of(request), body.memories)})

    async def clear(self, request: web.Request) -> web.Response:
        """Remove everything that is remembered of the user."""
        return json_response(await self._actions.clear(user_of(request)))
