"""What servers ask in the middle of a call, put to the person of the turn and to the model.

A person is asked yes or no, in whatever channel they are in, as for the approval of a call. So a form can be
accepted that yes fills in: its switches, and fields that have a default.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from miniclaw.errors import MCPError, ModelError
from miniclaw.mcp.client.host import Host
from miniclaw.mcp.protocol import INTERNAL_ERROR, INVALID_PARAMS
from miniclaw.tools.context import Answer, ToolContext

__all__ = ["Questions"]

MAX_SAMPLES: Final = 5
"""How often servers may have the model answer in one turn."""
MAX_TURNS: Final = 1000
"""The latest turns whose answers are counted."""
MAX_CHARS: Final = 20_000
"""What they may give it to read each time."""
CHARS_A_TOKEN: Final = 4
SHOWN_CHARS: Final = 1000
_REJECTED: Final = -1
"""The user said no (sampling)."""


class Questions:
    """Makes the `Host` of each call."""

    def __init__(self) -> None:
        self._samples: dict[str, int] = {}

    def host(self, server: str, roots: Sequence[Path], context: ToolContext | None = None) -> Host:
        """Who answers a server in this turn; without one, nobody is there to be asked."""
        return Host(
            elicit=partial(self._elicit, server, context),
            sample=partial(self._sample, server, context),
            roots=roots,
            who=context.turn_id if context is not None else "",
        )

    async def _elicit(
        self, server: str, context: ToolContext | None, params: dict[str, Any]
    ) -> dict[str, Any]:
        schema = params.get("requestedSchema")
        fields = schema.get("properties") if isinstance(schema, dict) else None
        fields = {n: f for n, f in fields.items() if isinstance(f, dict)} if isinstance(fields, dict) else {}
        needed = schema.get("required") or [] if isinstance(schema, dict) else []
        if not isinstance(needed, list) or not all(isinstance(name, str) for name in needed):
            raise MCPError(INVALID_PARAMS, "`requestedSchema.required` must be a list of names.")
        switches = {
            name for name, one in fields.items() if one.get("type") == "boolean" and "default" not in one
        }
        if set(needed) - switches - {name for name, one in fields.items() if "default" in one}:
            return {"action": "cancel"}  # yes and no are no answer to this
        shown = {
            n: one.get("default", True) for n, one in fields.items() if n in switches or "default" in one
        }
        said = str(params.get("message") or "")[:SHOWN_CHARS]
        if not await _confirm(context, server, {"accept": shown} if shown else {}, f"{server}: {said}"):
            return {"action": "decline"}
        return {"action": "accept", "content": dict.fromkeys(switches, True)}

    async def _sample(
        self, server: str, context: ToolContext | None, params: dict[str, Any]
    ) -> dict[str, Any]:
        messages = _messages(params)
        ask = self._count(context)
        asked = "\n".join(message["content"] for message in messages)[:SHOWN_CHARS]
        if not await _confirm(
            context, server, {"sampling": asked}, f"{server} wants the model to answer this."
        ):
            raise MCPError(_REJECTED, "The user did not allow it.")
        try:
            answer = await ask("sampling", messages)
        except ModelError as error:
            raise MCPError(INTERNAL_ERROR, f"The model did not answer: {error}") from error
        limit, text = params.get("maxTokens"), answer.text
        most = limit * CHARS_A_TOKEN if isinstance(limit, int) and limit > 0 else len(text)
        return {
            "role": "assistant",
            "content": {"type": "text", "text": text[:most]},
            "model": answer.usage.model,
            "stopReason": "maxTokens" if len(text) > most else "endTurn",
        }

    def _count(self, context: ToolContext | None) -> Callable[..., Awaitable[Answer]]:
        if context is None or context.ask is None:
            raise MCPError(_REJECTED, "Outside a turn the model answers nobody.")
        used = self._samples.get(context.turn_id, 0)
        if used >= MAX_SAMPLES:
            raise MCPError(
                _REJECTED, f"The model has answered {MAX_SAMPLES} times in this turn, which is enough."
            )
        self._samples[context.turn_id] = used + 1
        if len(self._samples) > MAX_TURNS:
            del self._samples[next(iter(self._samples))]
        return context.ask


async def _confirm(context: ToolContext | None, server: str, shown: dict[str, Any], about: str) -> bool:
    if context is None or context.confirm is None:
        return False
    return await context.confirm(f"mcp__{server}", shown, about)


def _messages(params: dict[str, Any]) -> list[dict[str, Any]]:
    """The request as chat messages; only text is taken."""
    found: list[dict[str, Any]] = []
    if isinstance(system := params.get("systemPrompt"), str):
        found.append({"role": "system", "content": system})
    messages = params.get("messages")
    for message in messages if isinstance(messages, list) else ():
        blocks = message.get("content") if isinstance(message, dict) else None
        for block in blocks if isinstance(blocks, list) else [blocks]:
            if not isinstance(block, dict) or block.get("type") != "text":
                raise MCPError(INVALID_PARAMS, "Only text can be given to the model here.")
            role = "assistant" if message.get("role") == "assistant" else "user"
            found.append({"role": role, "content": str(block.get("text"))})
    if not found or sum(len(one["content"]) for one in found) > MAX_CHARS:
        raise MCPError(
            INVALID_PARAMS, f"There must be something to answer, of at most {MAX_CHARS:,} characters."
        )
    return found
