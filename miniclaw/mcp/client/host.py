"""What a server may ask of us in the middle of a call, as small protocols that the program above injects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miniclaw.errors import MCPError
from miniclaw.mcp.protocol import INVALID_PARAMS, METHOD_NOT_FOUND

__all__ = ["Answers", "Host", "with_defaults"]

Answers = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a question: its parameters in, its result out; it may raise `MCPError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Who answers a server's questions; what is `None` is not offered to it.

    Attributes:
        elicit: asks the user (`elicitation/create`): `{"action": "accept", "content": {…}}` or a refusal.
        sample: has the model answer (`sampling/createMessage`).
        roots: the directories that a server may work in.
        who: whose questions they are; on a shared channel those of two are told apart by nothing.
    """

    elicit: Answers | None = None
    sample: Answers | None = None
    roots: Sequence[Path] = field(default=())
    who: str = ""

    @property
    def capabilities(self) -> dict[str, Any]:
        """As `initialize` and the modern `_meta` declare them."""
        offered: dict[str, Any] = {"roots": {}} if self.roots else {}
        if self.elicit is not None:
            offered["elicitation"] = {"form": {}}
        if self.sample is not None:
            offered["sampling"] = {}
        return offered

    async def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a question.

        Raises:
            MCPError: it is not offered, or refused.
        """
        if method == "roots/list" and self.roots:
            return {"roots": [{"uri": path.absolute().as_uri(), "name": path.name} for path in self.roots]}
        if method == "sampling/createMessage" and self.sample is not None:
            return await self.sample(params)
        if method == "elicitation/create" and self.elicit is not None:
            if params.get("mode", "form") != "form":
                raise MCPError(INVALID_PARAMS, "Only forms can be shown here.")
            return with_defaults(params, await self.elicit(params))
        raise MCPError(METHOD_NOT_FOUND, f"`{method}` is not offered here.")


def with_defaults(params: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """An accepted form with the defaults of the fields that were left out."""
    if result.get("action") != "accept":
        return {"action": result.get("action", "cancel")}
    schema = params.get("requestedSchema")
    fields = schema.get("properties") if isinstance(schema, dict) else None
    fields = fields if isinstance(fields, dict) else {}
    defaults = {n: f["default"] for n, f in fields.items() if isinstance(f, dict) and "default" in f}
    return {"action": "accept", "content": {**defaults, **(result.get("content") or {})}}
