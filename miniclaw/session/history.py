"""The legal view of a log: what a model may be sent, whatever happened to the conversation.

The log itself is never rewritten. The view is derived from it, message by message, so that extending it
costs only what is new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["INTERRUPTED", "HistoryView", "legal"]

Message = dict[str, Any]

INTERRUPTED: Final = (
    "This call was interrupted before its result was recorded; it is not known whether it happened. "
    "Check before you do it again."
)
"""The result that an unanswered call gets."""


class _Group:
    """The calls of one assistant message and where their results stand in the view."""

    __slots__ = ("answered", "calls")

    def __init__(self, calls: list[tuple[str, str]]) -> None:
        self.calls = calls
        """Original id and the id in the view, in order."""
        self.answered: dict[str, Message] = {}

    def claim(self, original: str) -> str | None:
        """The view's id of the first unanswered call with this original id."""
        for known, shown in self.calls:
            if known == original and shown not in self.answered:
                return shown
        return None

    def missing(self) -> list[Message]:
        """A result for each call that has none."""
        return [_result(shown, INTERRUPTED) for _, shown in self.calls if shown not in self.answered]


class HistoryView:
    """Messages in, a legal history out; extended as the log grows.

    Every assistant call has exactly one result right behind it, no result stands without its call, no
    assistant message is empty, ids within a message are unique, arguments are JSON objects. No user
    message is ever lost. A result that comes late takes the place of the one that was made up for it.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._open: _Group | None = None
        self._late: dict[str, int] = {}
        """Ids of made-up results and their places in the view, until a newer call takes the id."""

    def extend(self, messages: Iterable[Message]) -> None:
        """Take the next messages of the log."""
        for message in messages:
            role = message.get("role")
            if role == "tool":
                self._take_result(message)
            elif role == "assistant":
                self._take_assistant(message)
            elif role in ("user", "system", "developer"):
                self._close()
                self._messages.append(message)

    def messages(self) -> list[Message]:
        """The view as it can be sent now; the caller may append to the list."""
        if self._open is None:
            return self._messages.copy()
        return self._messages + self._open.missing()

    def _take_assistant(self, message: Message) -> None:
        calls = _sound_calls(message.get("tool_calls"))
        if not calls and not message.get("content"):
            return
        self._close()
        if calls:
            shown = [call for _, call in calls]
            unchanged = shown == message.get("tool_calls")
            self._messages.append(message if unchanged else {**message, "tool_calls": shown})
            self._open = _Group([(original, call["id"]) for original, call in calls])
            for original, _ in calls:
                self._late.pop(original, None)
        else:
            self._messages.append({k: v for k, v in message.items() if k != "tool_calls"})

    def _take_result(self, message: Message) -> None:
        original = str(message.get("tool_call_id") or "")
        shown = self._open.claim(original) if self._open else None
        if self._open is not None and shown is not None:
            result = message if shown == original else {**message, "tool_call_id": shown}
            if not isinstance(result.get("content"), str):
                result = {**result, "content": _as_text(result.get("content"))}
            self._open.answered[shown] = result
            self._messages.append(result)
        elif (place := self._late.pop(original, None)) is not None:
            self._messages[place] = {
                **message,
                "tool_call_id": self._messages[place]["tool_call_id"],
                "content": _as_text(message.get("content")),
            }

    def _close(self) -> None:
        """Answer the calls of the open message that nobody answered."""
        group, self._open = self._open, None
        if group is None:
            return
        originals = {shown: original for original, shown in group.calls}
        for result in group.missing():
            self._late[originals[result["tool_call_id"]]] = len(self._messages)
            self._messages.append(result)


def legal(messages: Iterable[Message]) -> list[Message]:
    """The legal view of a whole log; pure, and a legal history comes out as it went in."""
    view = HistoryView()
    view.extend(messages)
    return view.messages()


def _sound_calls(calls: object) -> list[tuple[str, Message]]:
    """Calls with unique ids, names and JSON-object arguments, each with its original id."""
    sound: list[tuple[str, Message]] = []
    used: set[str] = set()
    for number, call in enumerate(calls if isinstance(calls, list) else []):
        function = call.get("function") if isinstance(call, dict) else None
        if (
            not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
            or not function["name"]
        ):
            continue
        original = str(call.get("id") or "")
        shown = original or f"call_{number}"
        while shown in used:
            shown += f"_{number}"
        used.add(shown)
        arguments = function.get("arguments")
        sound_arguments = arguments if _is_object(arguments) else "{}"
        sound.append(
            (
                original,
                {
                    "id": shown,
                    "type": "function",
                    "function": {"name": function["name"], "arguments": sound_arguments},
                },
            )
        )
    return sound


def _is_object(arguments: object) -> bool:
    if not isinstance(arguments, str):
        return False
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def _result(call_id: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _as_text(content: object) -> str:
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)
