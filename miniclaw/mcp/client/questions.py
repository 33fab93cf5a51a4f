"""What servers ask in the middle of a call, put to the person of the turn and to the model.

A person is asked in whatever channel they are in, as for the approval of a call. Yes sets the switches of a form
and takes its defaults; what else it wants is typed with the yes (`forms.py`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from miniclaw.channel.forms import KINDS, kind_of, wording
from miniclaw.errors import MCPError, ModelError
from miniclaw.mcp.client.host import Host
from miniclaw.mcp.protocol import INTERNAL_ERROR, INVALID_PARAMS
from miniclaw.tools.context import Answer, ToolContext

__all__ = ["Questions", "form_of"]

MAX_SAMPLES: Final = 5
"""How often servers may have the model answer in one turn."""
MAX_TURNS: Final = 1000
"""The latest turns whose answers are counted."""
MAX_CHARS: Final = 20_000
"""What they may give it to read each time."""
CHARS_A_TOKEN: Final = 4
MAX_FIELDS: Final = 20
FORM_CHARS: Final = 8_000
"""Of a form as JSON; whoever is asked should be able to read it."""
SHOWN_CHARS: Final = 1000
MESSAGE_CHARS: Final = 300
"""Of what a server says above a form, so that the fields are seen."""
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
        form = form_of(params)
        fields, said = form["properties"], str(params.get("message") or "")
        about = f"{server}: {said[: MESSAGE_CHARS if fields else SHOWN_CHARS]}\n{wording(form)}".rstrip()
        state, content = await _confirm(context, server, {"form": form} if fields else {}, about)
        if state != "approved":
            return {"action": "cancel" if state == "expired" else "decline"}
        if any(name not in content and "default" not in fields[name] for name in form["required"]):
            return {"action": "cancel"}  # approved by who knew of no form
        return {"action": "accept", "content": content}

    async def _sample(
        self, server: str, context: ToolContext | None, params: dict[str, Any]
    ) -> dict[str, Any]:
        messages = _messages(params)
        ask = self._count(context)
        asked = "\n".join(message["content"] for message in messages)[:SHOWN_CHARS]
        about = f"{server} wants the model to answer this."
        if (await _confirm(context, server, {"sampling": asked}, about))[0] != "approved":
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


async def _confirm(
    context: ToolContext | None, server: str, shown: dict[str, Any], about: str
) -> tuple[str, dict[str, Any]]:
    if context is None or context.confirm is None:
        return "unattended", {}
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


def form_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """The form of a question: `{"properties": {name: field}, "required": [name]}`.

    Raises:
        MCPError: it cannot be asked.
    """
    schema = params.get("requestedSchema")
    schema = schema if isinstance(schema, dict) else {}
    fields, needed = schema.get("properties"), schema.get("required") or []
    fields = {n: f for n, f in fields.items() if isinstance(f, dict)} if isinstance(fields, dict) else {}
    if not isinstance(needed, list) or not all(isinstance(name, str) for name in needed):
        raise MCPError(INVALID_PARAMS, "`requestedSchema.required` must be a list of names.")
    if any(name not in fields for name in needed) or any(
        kind_of(one) not in KINDS for one in fields.values()
    ):
        raise MCPError(INVALID_PARAMS, "Only texts, numbers, switches and choices can be asked for.")
    form = {"properties": fields, "required": needed}
    if len(fields) > MAX_FIELDS or len(json.dumps(form)) > FORM_CHARS:
        raise MCPError(
            INVALID_PARAMS, f"A form has at most {MAX_FIELDS} fields and {FORM_CHARS:,} characters."
        )
    return form
