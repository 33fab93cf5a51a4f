"""The legal view of a log: what a model may be sent, whatever happened to the conversation.

The log itself is never rewritten. The view is derived from it, message by message, so that extending it
costs only what is new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydantic_core import from_json

from miniclaw.tokens import estimate_tokens

__all__ = [
    "INTERRUPTED",
    "IMAGE_TOKENS",
    "MESSAGE_TOKENS",
    "NOT_BEGUN",
    "HistoryView",
    "content_text",
    "legal",
    "message_tokens",
    "parse_arguments",
]

Message = dict[str, Any]

INTERRUPTED: Final = (
    "This call was interrupted before its result was recorded; it is not known whether it happened. "
    "Check before you do it again."
)
"""The result that an unanswered call gets."""
NOT_BEGUN: Final = "This call was not carried out: the turn was stopped before it."
"""The result of a call that surely changed nothing."""
MESSAGE_TOKENS: Final = 4
"""What a message costs beside its text, about."""
IMAGE_TOKENS: Final = 1_000
"""What an image costs, about; each server counts its own way."""
TOGETHER: Final = 500
"""Messages that are counted as one text."""


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
        self._costs: list[int | None] = []
        """Tokens of each message, counted when first needed."""
        self._counted, self._total = 0, 0
        """Messages from the first on that were counted together, and what they cost at most."""
        self._open: _Group | None = None
        self._late: dict[str, list[int]] = {}
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
                self._append(message)

    def messages(self) -> list[Message]:
        """The view as it can be sent now; the caller may append to the list."""
        if self._open is None:
            return self._messages.copy()
        return self._messages + self._open.missing()

    def fits(self, tokens: int) -> bool:
        """Whether all of it costs no more than that."""
        chosen, cost = self.tail(tokens)
        missing = len(self._open.missing()) if self._open is not None else 0
        return cost <= tokens and len(chosen) == len(self._messages) + missing

    def tail(self, tokens: int) -> tuple[list[Message], int]:
        """The latest whole turns that fit, or the last turn alone if even that does not; and what they cost.

        Many messages are counted as one text, and each by itself only where not all fit.
        """
        missing = self._open.missing() if self._open is not None else []
        used = sum(map(message_tokens, missing))
        while self._counted < len(self._messages) and used + self._total <= tokens:
            piece = self._messages[self._counted : self._counted + TOGETHER]
            self._total += _together(piece)
            self._counted += len(piece)
        if used + self._total <= tokens:
            return self._messages + missing, used + self._total
        start, kept = 0, None
        for index in range(len(self._messages) - 1, -1, -1):
            used += self._cost(index)
            if used > tokens and kept is not None:
                break
            if self._messages[index]["role"] == "user":
                start, kept = index, used
        if kept is None or (used <= tokens and start > 0):
            start, kept = 0, used
        return self._messages[start:] + missing, kept

    def _cost(self, index: int) -> int:
        cost = self._costs[index]
        if cost is None:
            cost = self._costs[index] = message_tokens(self._messages[index])
        return cost

    def _append(self, message: Message) -> None:
        self._messages.append(message)
        self._costs.append(None)

    def _take_assistant(self, message: Message) -> None:
        calls = _sound_calls(message.get("tool_calls"))
        if not calls and not content_text(message.get("content")).strip():
            return
        self._close()
        if calls:
            shown = [call for _, call in calls]
            unchanged = shown == message.get("tool_calls")
            self._append(message if unchanged else {**message, "tool_calls": shown})
            self._open = _Group([(original, call["id"]) for original, call in calls])
            for original, _ in calls:
                self._late.pop(original, None)
        else:
            has_calls = "tool_calls" in message
            plain = {k: v for k, v in message.items() if k != "tool_calls"} if has_calls else message
            self._append(plain)

    def _take_result(self, message: Message) -> None:
        original = str(message.get("tool_call_id") or "")
        shown = self._open.claim(original) if self._open else None
        if self._open is not None and shown is not None:
            unchanged = message.get("tool_call_id") == shown
            result = message if unchanged else {**message, "tool_call_id": shown}
            if not isinstance(result.get("content"), str):
                result = {**result, "content": _as_text(result.get("content"))}
            self._open.answered[shown] = result
            self._append(result)
        elif places := self._late.get(original):
            place = places.pop(0)
            self._messages[place] = {
                **message,
                "tool_call_id": self._messages[place]["tool_call_id"],
                "content": _as_text(message.get("content")),
            }
            self._costs[place] = None
            if place < self._counted:
                self._total += _together([self._messages[place]])

    def _close(self) -> None:
        """Answer the calls of the open message that nobody answered."""
        group, self._open = self._open, None
        if group is None:
            return
        originals = {shown: original for original, shown in group.calls}
        for result in group.missing():
            self._late.setdefault(originals[result["tool_call_id"]], []).append(len(self._messages))
            self._append(result)


def legal(messages: Iterable[Message]) -> list[Message]:
    """The legal view of a whole log; pure, and a legal history comes out as it went in."""
    view = HistoryView()
    view.extend(messages)
    return view.messages()


def parse_arguments(raw: object) -> dict[str, Any] | None:
    """The arguments of a call as a model wrote them, or `None` where they are no JSON object.

    NaN, lone surrogates and nesting without end, which a lenient reader takes, are none.
    """
    if not isinstance(raw, str):
        return None
    try:
        value = from_json(raw, allow_inf_nan=False)
    except (ValueError, TypeError):
        return None
    return value if isinstance(value, dict) else None


def message_tokens(message: Message) -> int:
    """An estimate of what a message costs; the thoughts of one with calls go back to some servers."""
    return MESSAGE_TOKENS + _images(message) + estimate_tokens(_counted_text(message))


def _together(messages: Sequence[Message]) -> int:
    """What messages cost, counted as one text: as much as one by one, or a little more."""
    # Each is rounded up by itself, and is one token at least.
    return (
        (MESSAGE_TOKENS + 1) * len(messages)
        + sum(map(_images, messages))
        + estimate_tokens("\n".join(map(_counted_text, messages)))
    )


def _counted_text(message: Message) -> str:
    text = _text_in(message, "content")
    if calls := message.get("tool_calls"):
        text += json.dumps(calls, ensure_ascii=False) + _text_in(message, "reasoning_content")
    return text


def _text_in(message: Message, key: str) -> str:
    return content_text(message.get(key))


def _images(message: Message) -> int:
    """What the images of a message cost, as they are stored or as they are sent."""
    parts = message.get("content")
    sent = [p for p in parts if "image_url" in p] if isinstance(parts, list) else ()
    return IMAGE_TOKENS * (len(sent) + len(message.get("images") or ()))


def content_text(content: object) -> str:
    """The text of a content, which is a text, or parts of which some are texts; empty for none."""
    if isinstance(content, list):
        return "\n\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


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
        sound_arguments = arguments if parse_arguments(arguments) is not None else "{}"
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


def _result(call_id: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _as_text(content: object) -> str:
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)
