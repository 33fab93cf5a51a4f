"""One turn that is longer than the window: what of it a model is still shown, and how that is shortened."""

from __future__ import annotations

import json
from typing import Any, Final

from miniclaw.session.history import MESSAGE_TOKENS, message_tokens, parse_arguments
from miniclaw.tokens import estimate_tokens

__all__ = ["CUT", "LEAST_SHARE", "squeezed"]

Message = dict[str, Any]

LEAST_SHARE: Final = 64
"""Tokens that the text of a message keeps while there is another way, however long its turn is."""
FEWEST: Final = 16
"""Tokens that the text of a message keeps at the very least; it holds the word on the cut."""
CUT: Final = "\n[… cut to fit the window]"
LEFT_OUT: Final = "[… what was called before in this turn is left out to fit the window]\n"
ARGUMENT_CHARS: Final = (8_000, 2_000, 500, 100, 0)
"""What is tried, one after the other, for the longest text inside the arguments of a call."""
CALLS_SHARE: Final = 2
"""The calls of a turn, without texts and results, may take one part in so many of the room."""


def squeezed(messages: list[Message], room: int) -> list[Message]:
    """One legal turn in at most `room` tokens, as far as there is room for anything.

    Long texts inside the arguments of calls become shorter; results and answers share what the user's text and the
    calls leave. Where that is too little for all of them, the oldest calls are left out with their results. A text of
    the user that alone is too long is cut too.
    """
    room -= estimate_tokens(LEFT_OUT)
    messages = _with_short_arguments(messages, room // CALLS_SHARE)
    rounds = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    begin = rounds[0] if rounds else len(messages)
    called = [place for place in rounds if messages[place].get("tool_calls")]
    shortened = messages if not called else _with_fewer_calls(messages, called[-1], room * 3 // 4)
    fewer, messages = len(shortened) < len(messages), shortened
    latest = messages[rounds[-1] :] if rounds else []
    left = room - sum(_without_text(m) + LEAST_SHARE for m in latest)
    most = max(left - MESSAGE_TOKENS, LEAST_SHARE)
    messages = [_cut(m, most) if m["role"] == "user" else m for m in messages]
    least = [message_tokens(m) if m["role"] == "user" else _without_text(m) for m in messages]
    first = begin
    cost = sum(least) + LEAST_SHARE * (len(messages) - begin)
    for following in rounds[1:]:
        if cost <= room:
            break
        cost -= sum(least[first:following]) + LEAST_SHARE * (following - first)
        first = following
    share = max(FEWEST, LEAST_SHARE + (room - cost) // max(1, len(messages) - first))
    kept = messages[:begin] + [_cut(m, share) for m in messages[first:]]
    if (first > begin or fewer) and len(kept) > begin + 1 and kept[begin + 1]["role"] == "tool":
        kept[begin + 1] = {**kept[begin + 1], "content": LEFT_OUT + kept[begin + 1]["content"]}
    return kept


def _without_text(message: Message) -> int:
    """What a message costs but for its text; one more, since both are rounded by themselves."""
    return message_tokens({**message, "content": None}) + 1


def _with_short_arguments(messages: list[Message], room: int) -> list[Message]:
    """The same messages, whose calls cost no more than `room` if that can be: the oldest are shortened first."""
    called = [place for place, message in enumerate(messages) if message.get("tool_calls")]
    shown = [*messages]
    for most in ARGUMENT_CHARS:
        for places in (called[:-1], called):
            if sum(_without_text(shown[place]) for place in called) <= room:
                return shown
            for place in places:
                shown[place] = _shortened(messages[place], most)
    return shown


def _shortened(message: Message, most: int) -> Message:
    """A message with calls, and no text of more than `most` characters in their arguments, nor in its thoughts."""
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        short = {**function, "arguments": _short_arguments(function["arguments"], most)}
        calls.append({**call, "function": short})
    changed = {**message, "tool_calls": calls}
    thoughts = message.get("reasoning_content")
    if isinstance(thoughts, str) and len(thoughts) > most + len(CUT):
        changed["reasoning_content"] = thoughts[:most] + CUT
    return changed


def _short_arguments(raw: str, most: int) -> str:
    short = json.dumps(_short(parse_arguments(raw) or {}, most), ensure_ascii=False)
    if len(short) > 4 * most + 100:  # many values, or large ones that are no texts
        short = json.dumps({"…": _mark(len(raw))}, ensure_ascii=False)
    return short if len(short) < len(raw) else raw


def _short(value: Any, most: int) -> Any:
    if isinstance(value, str):
        short = value[:most] + _mark(len(value) - most)
        return short if len(short) < len(value) else value
    if isinstance(value, list):
        return [_short(one, most) for one in value]
    if isinstance(value, dict):
        return {name: _short(one, most) for name, one in value.items()}
    return value


def _mark(left_out: int) -> str:
    return f"[… {left_out} characters left out to fit the window]"


def _with_fewer_calls(messages: list[Message], place: int, room: int) -> list[Message]:
    """The same turn with only the latest calls of one message, as many as cost no more than `room`, but one at least."""
    message, rest = messages[place], messages[place + 1 :]
    results = {one["tool_call_id"]: one for one in rest if one["role"] == "tool"}
    left = room - _without_text({**message, "tool_calls": []}) - FEWEST
    kept: list[Message] = []
    for call in reversed(message["tool_calls"]):
        left -= _without_text({"role": "assistant", "tool_calls": [call]})
        left -= _without_text(results[call["id"]]) + FEWEST
        if left < 0 and kept:
            break
        kept.insert(0, call)
    if len(kept) == len(message["tool_calls"]):
        return messages
    ids = {call["id"] for call in kept}
    shown = [one for one in rest if one["role"] != "tool" or one["tool_call_id"] in ids]
    return [*messages[:place], {**message, "tool_calls": kept}, *shown]


def _cut(message: Message, tokens: int) -> Message:
    """A message whose text is shortened to at most so many tokens."""
    text = message.get("content") or ""
    if estimate_tokens(text) <= tokens:
        return message
    length = tokens  # a token is seldom less than a character
    while estimate_tokens(text[:length] + CUT) > tokens and length > 1:
        length = length * 3 // 4
    return {**message, "content": text[:length] + CUT}
