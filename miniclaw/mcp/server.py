"""`MCPServer`: what is offered to MCP clients, and the methods by which they get it, on both wires."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from miniclaw import __version__
from miniclaw.errors import MCPError
from miniclaw.mcp.call import Call, InputRequired
from miniclaw.mcp.offers import Completes, Object, OffersPrompts, OffersResources, OffersTools
from miniclaw.mcp.params import object_of, page_of, text_of
from miniclaw.mcp.protocol import (
    HANDSHAKE,
    INVALID_PARAMS,
    LOG_LEVELS,
    META_CAPABILITIES,
    META_SERVER,
    META_VERSION,
    METHOD_NOT_FOUND,
    MODERN,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
)
from miniclaw.mcp.rounds import ASKING, Rounds
from miniclaw.mcp.session import Session

__all__ = ["MCPServer"]

MAX_COMPLETIONS: Final = 100
_CACHED: Final = frozenset(
    "server/discover tools/list prompts/list resources/list resources/templates/list resources/read".split()
)


class MCPServer:
    """What is offered; of each kind, the first provider that knows a name serves it.

    Args:
        name: what the server calls itself.
        instructions: for the model, how to use it.
        ttl_ms: how long a modern client may keep a list.
        tells: whether `changed` is called when lists change.
        watches: whether `updated` is called when resources change.
    """

    def __init__(
        self,
        *,
        name: str = "miniclaw",
        instructions: str = "",
        tools: Iterable[OffersTools] = (),
        resources: Iterable[OffersResources] = (),
        prompts: Iterable[OffersPrompts] = (),
        completions: Iterable[Completes] = (),
        ttl_ms: int = 0,
        tells: bool = False,
        watches: bool = False,
    ) -> None:
        self.info: Final = {"name": name, "version": __version__}
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.stopping = asyncio.Event()
        """Set when subscriptions are to end."""
        self._instructions = instructions
        self._tools, self._resources = tuple(tools), tuple(resources)
        self._prompts, self._completions = tuple(prompts), tuple(completions)
        self._ttl_ms = ttl_ms
        self._tells, self._watches = tells, watches
        self._rounds = Rounds()
        both: dict[str, Callable[[Call], Awaitable[Object]]] = {
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
        }
        self._modern = {**both, "server/discover": self._discover}
        self._handshake = {
            **both,
            "logging/setLevel": self._set_level,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
        }

    def changed(self, what: str) -> None:
        """Tell all clients that a list (`tools`, `prompts`, `resources`) is another one now."""
        for session in tuple(self.sessions):
            session.changed(what)

    def updated(self, uri: str) -> None:
        """Tell the clients that watch a resource that it is another one now."""
        for session in tuple(self.sessions):
            session.updated(uri)

    async def handle(self, call: Call) -> Object:
        """The result of a request.

        Raises:
            MCPError: it is refused.
        """
        if call.is_modern:
            return await self._handle_modern(call)
        method, session = call.request.method, call.session
        if method == "initialize":
            return self._initialize(call)
        if method == "ping":
            return {}
        if session.version is None:
            raise MCPError(INVALID_PARAMS, "Send `initialize` first.")
        handler = self._handshake.get(method)
        if handler is None:
            raise MCPError(METHOD_NOT_FOUND, f"There is no method `{method}`.")
        return await handler(call)

    def grant(self, wanted: Object, readable: list[str]) -> Object:
        """What of a `subscriptions/listen` filter is kept to."""
        lists = ("toolsListChanged", "promptsListChanged", "resourcesListChanged")
        granted: Object = {name: True for name in lists if self._tells and wanted.get(name) is True}
        if self._watches and readable:
            granted["resourceSubscriptions"] = readable
        return granted

    async def readable(self, uris: object, call: Call) -> list[str]:
        """Those of the resources that the client may read."""
        found = []
        for uri in uris if isinstance(uris, list) else ():
            with contextlib.suppress(MCPError):
                if isinstance(uri, str):
                    await self._contents(uri, call)
                    found.append(uri)
        return found

    async def input_schema(self, call: Call) -> object:
        """The schema of the tool that a call names; `None` where there is none of that name."""
        name = call.request.params.get("name")
        for each in self._tools:
            for row in await each.list_tools(call):
                if row["name"] == name:
                    return row["inputSchema"]
        return None

    def modern(self, call: Call, result: Object) -> Object:
        """A result as the modern wire has it."""
        method = call.request.method
        if method in _CACHED:
            ttl = 0 if method == "resources/read" else self._ttl_ms
            result = {"ttlMs": ttl, "cacheScope": "private", **result}
        return {"resultType": "complete", **result}

    def check_meta(self, call: Call) -> None:
        """Check what a modern request must say of itself.

        Raises:
            MCPError: `INVALID_PARAMS`.
        """
        meta = call.request.meta
        if isinstance(meta.get(META_VERSION), str) and isinstance(meta.get(META_CAPABILITIES), dict):
            return
        raise MCPError(INVALID_PARAMS, f"`_meta` must name `{META_VERSION}` and `{META_CAPABILITIES}`.")

    def check_version(self, call: Call) -> None:
        """Check that the revision of a modern request is spoken.

        Raises:
            MCPError: `UNSUPPORTED_VERSION`.
        """
        version = call.request.meta[META_VERSION]
        if version != MODERN:
            data = {"supported": [MODERN], "requested": version}
            raise MCPError(
                UNSUPPORTED_VERSION, f"Revision {version} is not spoken without a handshake.", data
            )

    async def _handle_modern(self, call: Call) -> Object:
        self.check_meta(call)
        self.check_version(call)
        method = call.request.method
        handler = self._modern.get(method)
        if handler is None:
            raise MCPError(METHOD_NOT_FOUND, f"There is no method `{method}`.")
        if method not in ASKING:
            return self.modern(call, await handler(call))
        self._rounds.open(call)
        try:
            return self.modern(call, await handler(call))
        except InputRequired as required:
            return self._rounds.close(call, required)

    def _initialize(self, call: Call) -> Object:
        params, session = call.request.params, call.session
        wanted, declared = params.get("protocolVersion"), params.get("capabilities")
        version = wanted if wanted in HANDSHAKE else "2025-06-18" if wanted == "2025-03-26" else HANDSHAKE[0]
        session.version = version
        session.capabilities = declared if isinstance(declared, dict) else {}
        return {
            "protocolVersion": version,
            "capabilities": {**self._capabilities(), "logging": {}},
            "serverInfo": self.info,
            **({"instructions": self._instructions} if self._instructions else {}),
        }

    async def _discover(self, call: Call) -> Object:
        return {
            "supportedVersions": [MODERN],
            "capabilities": self._capabilities(),
            **({"instructions": self._instructions} if self._instructions else {}),
            "_meta": {META_SERVER: self.info},
        }

    def _capabilities(self) -> Object:
        # Several hosts list resources and prompts unasked and take an error for the end of the server.
        return {
            "tools": {"listChanged": self._tells},
            "resources": {"subscribe": self._watches, "listChanged": self._tells},
            "prompts": {"listChanged": self._tells},
            **({"completions": {}} if self._completions else {}),
        }

    async def _list_tools(self, call: Call) -> Object:
        return page_of(call, "tools", [item for each in self._tools for item in await each.list_tools(call)])

    async def _list_resources(self, call: Call) -> Object:
        found = [item for each in self._resources for item in await each.list_resources(call)]
        return page_of(call, "resources", found)

    async def _list_templates(self, call: Call) -> Object:
        found = [item for each in self._resources for item in await each.list_templates(call)]
        return page_of(call, "resourceTemplates", found)

    async def _list_prompts(self, call: Call) -> Object:
        found = [item for each in self._prompts for item in await each.list_prompts(call)]
        return page_of(call, "prompts", found)

    async def _call_tool(self, call: Call) -> Object:
        name = text_of(call, "name")
        arguments = object_of(call, "arguments")
        for each in self._tools:
            if (result := await each.call_tool(name, arguments, call)) is not None:
                return result
        raise MCPError(INVALID_PARAMS, f"There is no tool `{name}`.")

    async def _read_resource(self, call: Call) -> Object:
        return {"contents": await self._contents(text_of(call, "uri"), call)}

    async def _contents(self, uri: str, call: Call) -> list[Object]:
        for each in self._resources:
            if (contents := await each.read_resource(uri, call)) is not None:
                return list(contents)
        code = INVALID_PARAMS if call.is_modern else RESOURCE_NOT_FOUND
        raise MCPError(code, f"There is no resource `{uri}`.", {"uri": uri})

    async def _get_prompt(self, call: Call) -> Object:
        name, arguments = text_of(call, "name"), object_of(call, "arguments")
        if not all(isinstance(value, str) for value in arguments.values()):
            raise MCPError(INVALID_PARAMS, "The arguments of a prompt are texts.")
        for each in self._prompts:
            if (result := await each.get_prompt(name, arguments, call)) is not None:
                return result
        raise MCPError(INVALID_PARAMS, f"There is no prompt `{name}`.")

    async def _complete(self, call: Call) -> Object:
        ref, argument = object_of(call, "ref"), object_of(call, "argument")
        name, value = argument.get("name"), argument.get("value")
        if not isinstance(name, str) or not isinstance(value, str):
            raise MCPError(INVALID_PARAMS, "`argument` must have a `name` and a `value`.")
        context = object_of(call, "context").get("arguments") or {}
        for each in self._completions:
            if (values := await each.complete(ref, name, value, context, call)) is not None:
                more = len(values) > MAX_COMPLETIONS
                shown = list(values[:MAX_COMPLETIONS])
                return {"completion": {"values": shown, "total": len(values), "hasMore": more}}
        raise MCPError(INVALID_PARAMS, "There is no such prompt or resource template.")

    async def _set_level(self, call: Call) -> Object:
        level = text_of(call, "level")
        if level not in LOG_LEVELS:
            raise MCPError(INVALID_PARAMS, f"`{level}` is no log level.")
        call.session.log_level = level
        return {}

    async def _subscribe(self, call: Call) -> Object:
        uri = text_of(call, "uri")
        await self._contents(uri, call)  # only what this client may read
        call.session.watched.add(uri)
        return {}

    async def _unsubscribe(self, call: Call) -> Object:
        call.session.watched.discard(text_of(call, "uri"))
        return {}
