"""Fits parameters, tools and history to what a server takes. No I/O."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from miniclaw.agent.details import STRUCTURED
from miniclaw.agent.providers import NO_OUTPUT, Message
from miniclaw.agent.quirks import LENGTHS, Quirks
from miniclaw.agent.schemas import MOST_ABOUT, simple_schema
from miniclaw.session.history import content_text

__all__ = [
    *("fit_content", "fit_messages", "fit_parameters", "fit_tools", "own_data", "short_id", "short_names"),
    "wire_name",
]

_FITTING: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
"""Tool names that every server takes."""
_PRIVATE: Final = frozenset({"reasoning_content", "provider_data", "images"})
_UNSIGNED: Final = "skip_thought_signature_validator"
"""What Google documents for calls of other models: https://ai.google.dev/gemini-api/docs/thought-signatures."""
_NO_TEXT: Final = {"any": None, "null": None, "text": "", "mark": "…"}


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
                changed["parameters"] = simple_schema(changed.get("parameters"))
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
    touches_own = renamed or quirks.names or quirks.signed or quirks.thoughts in {"calls", "always"}
    touches_own = touches_own or not quirks.content == quirks.beside == "any"
    fitted = [
        _fit(message, quirks, by)
        if touches_all
        or "reasoning_content" in message
        or "provider_data" in message
        or "images" in message
        or isinstance(content := message.get("content"), list)
        or (message.get("tool_calls") and content and content.isspace())
        or (message["role"] == "tool" and (not content or content.isspace()))
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
    if message["role"] == "tool" and not content_text(message.get("content")).strip():
        fitted["content"] = NO_OUTPUT
    elif message["role"] != "assistant":
        fitted["content"] = fit_content(message.get("content"), quirks)
    if message["role"] != "assistant":
        return fitted
    data, thoughts = own_data(message, quirks, by), message.get("reasoning_content")
    text = message.get("content") or ""
    if calls := message.get("tool_calls"):
        extras = data.get("calls") or [{}] * len(calls)
        fitted["tool_calls"] = sent = [_fit_call(*each, quirks) for each in zip(calls, extras, strict=False)]
        if quirks.signed and not any(_google(call).get("thought_signature") for call in sent):
            google = {**_google(sent[0]), "thought_signature": _UNSIGNED}
            sent[0] = {**sent[0], "extra_content": {"google": google}}
        if quirks.beside != "any" and thoughts and quirks.thoughts != "never":
            thoughts, text = f"{thoughts}\n\n{text}".rstrip(), ""
        if not text.strip() or quirks.beside == "none":
            fitted["content"] = _NO_TEXT[quirks.content]
    fitted |= {name: data[key] for key, name in STRUCTURED.items() if data.get(key)}
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


def _google(call: Message) -> Message:
    """What Gemini's own API keeps with a call; empty for none."""
    extra = call.get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    return google if isinstance(google, dict) else {}


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
