"""Fits parameters, tools and history to what a server takes. No I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from miniclaw.agent.providers import Message
from miniclaw.agent.quirks import LENGTHS, Quirks
from miniclaw.session.history import content_text

__all__ = [
    *("fit_content", "fit_messages", "fit_parameters", "fit_tools", "own_data", "short_id", "short_names"),
    "wire_name",
]

_FITTING: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
"""Tool names that every server takes."""
_PRIVATE: Final = frozenset({"reasoning_content", "provider_data", "images"})
_SIMPLE: Final = frozenset({"type", "description", "properties", "required", "items", "enum"})
"""What every server knows of JSON Schema."""
_NO_TEXT: Final = {"any": None, "null": None, "text": "", "mark": "…"}
_TYPES: Final = {name: name for name in ("string", "integer", "number", "boolean", "array", "object")} | {
    **{"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
}  # fmt: skip
"""Types of JSON Schema, and what programs call them; others stop servers that make a grammar of a schema."""
MOST_NODES: Final = 2_000
"""Of a simple schema."""
MOST_ABOUT: Final = 1_024
"""Characters of a tool's description; OpenAI and Azure take no more."""


def fit_parameters(wanted: Mapping[str, Any], quirks: Quirks, *, has_tools: bool) -> dict[str, Any]:
    """The parameters as the server takes them."""
    fitted = {key: value for key, value in wanted.items() if key not in quirks.dropped}
    for name in LENGTHS:
        if name in fitted and (quirks.length or quirks.longest):
            value = fitted.pop(name)
            fitted[quirks.length or name] = min(value, quirks.longest or value)
    if "stream" not in fitted:
        fitted.pop("stream_options", None)
    if not has_tools:
        for name in ("tool_choice", "parallel_tool_calls"):
            fitted.pop(name, None)
    elif "tool_choice" in fitted and not quirks.tool_choice:
        fitted["tool_choice"] = "auto"
    return fitted


@lru_cache(maxsize=1024)
def wire_name(name: str) -> str:
    """A name that every server takes, the same for the same tool at all times."""
    if _FITTING.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    plain = re.sub(r"[^a-zA-Z0-9_-]+", "_", name).strip("_-")
    return f"{plain if plain[:1].isalpha() else f't_{plain}'}"[:55].rstrip("_-") + f"_{digest}"


def fit_tools(
    tools: Sequence[Message], quirks: Quirks
) -> tuple[list[Message], dict[str, Message], dict[str, str]]:
    """The tools as the server takes them, their schemas by that name, and our names where they differ."""
    fitted: list[Message] = []
    schemas: dict[str, Message] = {}
    names: dict[str, str] = {}
    for tool in tools if "tools" not in quirks.dropped else ():
        function = tool["function"]
        name = wire_name(function["name"])
        schemas[name] = function.get("parameters") or {}
        if name != function["name"]:
            names[name] = function["name"]
        if name != function["name"] or quirks.schemas != "full":
            changed = {
                key: value for key, value in function.items() if key != "strict" or quirks.schemas == "full"
            }
            changed["name"] = name
            if quirks.schemas == "simple":
                changed["parameters"] = _simple(changed.get("parameters"))
                changed["description"] = str(changed.get("description") or "")[:MOST_ABOUT]
            tool = {**tool, "function": changed}
        fitted.append(tool)
    return fitted, schemas, names


def short_names(names: Collection[str]) -> dict[str, str]:
    """What small models call a remote tool by: its own name without the server's, where only one tool has it."""
    full = [name for name in names if name.startswith("mcp__")]
    shorts = [name.removeprefix("mcp__").partition("__")[2] for name in full]
    taken = Counter([*shorts, *names] if full else ())
    return {short: name for short, name in zip(shorts, full, strict=True) if short and taken[short] == 1}


def fit_messages(messages: Sequence[Message], quirks: Quirks, *, by: str, renamed: bool) -> Sequence[Message]:
    """The history as the server takes it; messages that it takes as they are go out as they are.

    Args:
        messages: the history, with what only a provider sees.
        quirks: what the server does not take.
        by: marks what only this server understands.
        renamed: whether a tool has another name on the wire.
    """
    touches_all = quirks.ids or bool(quirks.roles)
    touches_own = renamed or quirks.names or quirks.thoughts in {"calls", "always"}
    touches_own = touches_own or not quirks.content == quirks.beside == "any"
    fitted = [
        _fit(message, quirks, by)
        if touches_all
        or "reasoning_content" in message
        or "provider_data" in message
        or "images" in message
        or isinstance(content := message.get("content"), list)
        or (message.get("tool_calls") and content and content.isspace())
        or (touches_own and message["role"] == "assistant")
        else message
        for message in messages
    ]
    if quirks.one_system:
        system = "\n\n".join(str(m["content"]) for m in fitted if m["role"] in {"system", "developer"})
        rest = [message for message in fitted if message["role"] not in {"system", "developer"}]
        role = quirks.roles.get("system", "system")
        fitted = [{"role": role, "content": system}, *rest] if system else rest
    fitted = _one_by_one(fitted, quirks) if quirks.one_call else fitted
    return _alternating(fitted) if quirks.alternate else fitted


def _one_by_one(messages: Sequence[Message], quirks: Quirks) -> list[Message]:
    """Each call in a message of its own with its result behind it; the text stands before the first."""
    apart: list[Message] = []
    waiting: dict[str, Message] = {}
    for message in messages:
        if len(calls := message.get("tool_calls") or []) > 1:
            bare = {**message, "content": _NO_TEXT[quirks.content]}
            waiting = {call["id"]: {**bare, "tool_calls": [call]} for call in calls}
            waiting[calls[0]["id"]]["content"] = message.get("content")
            continue
        if (call := waiting.pop(message.get("tool_call_id", ""), None)) is not None:
            apart.append(call)
        apart.append(message)
    return apart


def own_data(message: Message, quirks: Quirks, by: str) -> Message:
    """What of a message only this server understands, if it takes it back."""
    data = message.get("provider_data") or {}
    return data if quirks.data and data.get("by") == by else {}


def _fit(message: Message, quirks: Quirks, by: str) -> Message:
    fitted = {key: value for key, value in message.items() if key not in _PRIVATE}
    fitted["role"] = quirks.roles.get(message["role"], message["role"])
    if quirks.ids and "tool_call_id" in fitted:
        fitted["tool_call_id"] = short_id(fitted["tool_call_id"])
    if message["role"] != "assistant":
        return fitted | {"content": fit_content(message.get("content"), quirks)}
    data, thoughts = own_data(message, quirks, by), message.get("reasoning_content")
    text = message.get("content") or ""
    if calls := message.get("tool_calls"):
        extras = data.get("calls") or [{}] * len(calls)
        fitted["tool_calls"] = [_fit_call(*each, quirks) for each in zip(calls, extras, strict=False)]
        if quirks.beside != "any" and thoughts and quirks.thoughts != "never":
            thoughts, text = f"{thoughts}\n\n{text}".rstrip(), ""
        if not text.strip() or quirks.beside == "none":
            fitted["content"] = _NO_TEXT[quirks.content]
    if data.get("details"):
        fitted["reasoning_details"] = data["details"]
    is_due = quirks.thoughts == "always" or (calls and (thoughts or quirks.thoughts == "calls"))
    if is_due and quirks.thoughts != "never":
        fitted["reasoning_content"] = thoughts or quirks.no_thoughts
    return fitted


def fit_content(content: object, quirks: Quirks) -> object:
    """A content without its images where they are not taken; its words tell of each."""
    return content_text(content) if isinstance(content, list) and quirks.images != "taken" else content


def _fit_call(call: Message, extra: Message, quirks: Quirks) -> Message:
    name = wire_name(call["function"]["name"])
    fitted = {**call, **extra} if extra else call
    if name != call["function"]["name"]:
        fitted = {**fitted, "function": {**call["function"], "name": name}}
    return {**fitted, "id": short_id(call["id"])} if quirks.ids else fitted


def _alternating(messages: Sequence[Message]) -> list[Message]:
    """Neighbouring messages of a user, and plain ones of the assistant, as one."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else {}
        is_plain = not message.get("tool_calls") and not last.get("tool_calls")
        if message["role"] == last.get("role") and message["role"] in {"user", "assistant"} and is_plain:
            merged[-1] = {**last, "content": _joined(last.get("content"), message.get("content"))}
        else:
            merged.append(message)
    return merged


def _joined(first: Any, second: Any) -> Any:
    if not isinstance(first, list) and not isinstance(second, list):
        return f"{first or ''}\n\n{second or ''}"
    both = (
        one if isinstance(one, list) else [{"type": "text", "text": one or ""}] for one in (first, second)
    )
    return [part for parts in both for part in parts]


def short_id(call_id: str) -> str:
    """An id that every server takes."""
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def _simple(schema: Any) -> Message:
    """A schema with only what every server knows: references put in, choices narrowed to the first, each with a type.

    A circle is cut, and so is what comes behind the first `MOST_NODES`.
    """
    left = MOST_NODES

    def fit(node: Any, path: tuple[str, ...] = (), depth: int = 0, *, is_part: bool = False) -> Message:
        nonlocal left
        left -= 1
        node = node if isinstance(node, dict) else {}
        while isinstance(reference := node.get("$ref"), str) and reference not in path:
            path = (*path, reference)
            node = {**_named(reference, schema), **{key: one for key, one in node.items() if key != "$ref"}}
        if left < 0 or depth > 16 or "$ref" in node:
            return {"type": "object"}
        for word in ("allOf", "anyOf", "oneOf"):
            choices = [one for one in _listed(node.get(word)) if one.get("type") != "null"]
            for part in choices if word == "allOf" else choices[:1]:
                node = _merged(node, fit(part, path, depth + 1, is_part=True))
        found = {key: value for key, value in node.items() if key in _SIMPLE}
        if "const" in node:
            found["enum"] = [node["const"]]
        if isinstance(found.get("properties"), dict):
            found["properties"] = {k: fit(one, path, depth + 1) for k, one in found["properties"].items()}
        if "items" in found or "prefixItems" in node:
            items = found.get("items") or node.get("prefixItems")
            found["items"] = fit(items[0] if isinstance(items, list) and items else items, path, depth + 1)
        return found if is_part else _typed(found, "object" if depth == 0 else "string")

    return fit(schema)


def _listed(choices: Any) -> list[Message]:
    return [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []


def _merged(node: Message, part: Message) -> Message:
    """A schema with what a part of it adds; its own words count first."""
    both = {**part, **node}
    if isinstance(part.get("properties"), dict) and isinstance(node.get("properties", {}), dict):
        both["properties"] = {**part["properties"], **node.get("properties", {})}
    if isinstance(part.get("required"), list) and isinstance(node.get("required", []), list):
        both["required"] = [*node.get("required", []), *part["required"]]
    return both


def _typed(found: Message, otherwise: str) -> Message:
    """A schema that says its type, that of its items, and requires nothing that it does not have."""
    said, values = found.get("type"), _values(found)
    kinds = [_TYPES.get(str(kind).lower(), "") for kind in (said if isinstance(said, list) else [said])]
    if not (kind := next(filter(None, kinds), "")):
        guess = _TYPES.get(type(values[0]).__name__, otherwise) if values else otherwise
        kind = "object" if "properties" in found else "array" if "items" in found else guess
    found["type"] = kind
    found.pop("enum", None)
    if values:  # which Gemini takes of strings alone
        texts = [one for one in values if isinstance(one, str) and one]
        if kind == "string" and texts:
            found["enum"] = texts
        else:
            all_of = ", ".join(json.dumps(one, ensure_ascii=False) for one in values[:20])
            found["description"] = f"{found.get('description') or ''} One of: {all_of}"[:MOST_ABOUT].lstrip()
    if kind == "array":
        found.setdefault("items", {"type": "string"})
    required, properties = found.pop("required", None), found.get("properties")
    if isinstance(required, list) and isinstance(properties, dict):
        if known := [name for name in dict.fromkeys(map(str, required)) if name in properties]:
            found["required"] = known
    return found


def _values(found: Message) -> list[Any]:
    values = found.get("enum")
    return values if isinstance(values, list) else []


def _named(reference: str, root: Any) -> Message:
    """What a local reference names, as a JSON pointer (RFC 6901)."""
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        root = root.get(name, {}) if isinstance(root, dict) else {}
    return root if isinstance(root, dict) else {}
