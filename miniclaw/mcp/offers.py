"""What a server may offer: small protocols, one a kind of thing. A server takes any number of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from miniclaw.mcp.call import Call

__all__ = ["Completes", "Object", "OffersPrompts", "OffersResources", "OffersTools"]

Object = dict[str, Any]
"""A JSON object."""


class OffersTools(Protocol):
    """Some tools."""

    async def list_tools(self, call: Call) -> Sequence[Object]:
        """Them as `tools/list` has them."""
        ...

    async def call_tool(self, name: str, arguments: Object, call: Call) -> Object | None:
        """The result of `tools/call`; `None` when there is no such tool here."""
        ...


class OffersResources(Protocol):
    """Some resources."""

    async def list_resources(self, call: Call) -> Sequence[Object]:
        """Them as `resources/list` has them."""
        ...

    async def list_templates(self, call: Call) -> Sequence[Object]:
        """The URI templates, as `resources/templates/list` has them."""
        ...

    async def read_resource(self, uri: str, call: Call) -> Sequence[Object] | None:
        """The `contents` of `resources/read`; `None` when there is no such resource here."""
        ...


class OffersPrompts(Protocol):
    """Some prompts."""

    async def list_prompts(self, call: Call) -> Sequence[Object]:
        """Them as `prompts/list` has them."""
        ...

    async def get_prompt(self, name: str, arguments: Mapping[str, str], call: Call) -> Object | None:
        """The result of `prompts/get`; `None` when there is no such prompt here."""
        ...


class Completes(Protocol):
    """Something that knows what may be typed."""

    async def complete(
        self, ref: Object, name: str, value: str, context: Mapping[str, str], call: Call
    ) -> Sequence[str] | None:
        """Values of the argument `name` of a prompt or template that begin like `value`, the best first.

        `context` holds the arguments that are filled in already; `None` when `ref` is not known here.
        """
        ...
