"""Finds calls that a model prints as text, and holds back what may still become one. No I/O.

Only what names an offered tool is a call; everything else is text, and is shown as such.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from miniclaw.agent.arguments import (
    ARGUMENT_KEYS,
    CALL_KEYS,
    FORMS,
    Form,
    Offered,
    PrintedCall,
    call_of,
    code_calls,
    items,
    json_values,
    python_dict,
    typed,
    unfenced,
)

__all__ = ["CallFilter", "find_calls"]

LONGEST: Final = 65_536
"""Characters that are held back and searched for calls; an answer that goes on longer is a text."""
MOST_LOOKED: Final = 64
"""Printed calls of a text that are looked at."""
LOOKED_AT: Final = 200
"""Characters that tell whether a call may begin."""

_MARKS: Final = (
    *("<tool_call>", "<tool_calls>", "<|tool_call|>", "<function=", "<function_call>", "<function_calls>"),
    *(
        "<minimax:tool_call>",
        "<invoke name=",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "[TOOL_CALLS]",
    ),
    *("<|python_tag|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<｜DSML｜function_calls>"),
    *("<｜DSML｜tool_calls>", "<｜DSML｜invoke name=", "<|DSML|function_calls>", "<|DSML|invoke name="),
)
_MARK: Final = re.compile("|".join(map(re.escape, _MARKS)))
_BEGINNINGS: Final = frozenset(mark[:end] for mark in _MARKS for end in range(1, len(mark)))
_OPENING: Final = re.compile(r"[<\[]")
_LONGEST: Final = max(map(len, _MARKS))
_WORD: Final = re.compile(r"(?:functions?\.)?([^\s\"'<>\[\](){}:.=]+)")
_HEAD: Final = re.compile(r"""\{{1,2}\s*(?:["']([^"']*)(?:(["'])\s*:?\s*(?:["']([^"']*)(["'])?)?)?)?""")
_FENCE_HEADS: Final = ("```json", "```tool_call", "```tool_code", "```python", "```xml")

_BEFORE_CALL: Final = ("json", "function", "functions")
_BEFORE_JSON: Final = re.compile(
    r"(?:<tool_calls?>|<\|tool_call\|>|<function_call>|<\|python_tag\|>|\[TOOL_CALLS\])\s*(?:```(?:json)?\s*)?(?=[\[{])"
)
_BEHIND_JSON: Final = re.compile(r"[\s}\]]*")
_CODE: Final = "<|python_tag|>"
_BEHIND_VALUE: Final = re.compile("</|" + _MARK.pattern)
_WRAPPING: Final = re.compile(
    r"</?(?:tool_calls?|function_calls?|minimax:tool_call|[｜|]DSML[｜|]\w*)>|```|<｜tool▁calls▁(?:begin|end)｜>"
    r"|<\|(?:tool_calls_section_(?:begin|end)|e[om][mt]_id|eot_id|im_end)\|>"
)
"""What stands around calls and means nothing alone."""


class CallFilter:
    """Takes the text of an answer piece by piece and lets through what is certainly not a call.

    Only the first characters of what is held back are judged, so the work grows as the text does.
    """

    def __init__(self, offered: Offered) -> None:
        self._offered = offered
        self._blanks: list[str] = []
        """What is before the first word, as long as everything is held back."""
        self._held = ""
        self._more: list[str] = []
        """What follows it, once nothing can change that it is held back."""
        self._size = 0
        self._is_sure = self._is_text = False
        self._is_start = True

    def feed(self, piece: str) -> str:
        """Take a piece; returns what can be shown by now."""
        if self._is_text or not (self._is_start or self._held or _OPENING.search(piece)):
            return piece
        if self._is_start and not self._held:
            word = piece.lstrip()
            self._blanks.append(piece[: len(piece) - len(word)])
            piece = word
        shown = ""
        if self._is_sure:
            self._more.append(piece)
        else:
            self._held += piece
            shown = self._judge()
        self._size += len(piece) - len(shown)
        if self._size > LONGEST:
            self._is_text, self._is_start = True, False
            shown += self._take()
        return shown if self._is_start else self._take_blanks() + shown

    def finish(self) -> tuple[str, list[PrintedCall]]:
        """What was held back: the text of it, and the calls."""
        calls, text = find_calls(self._take(), self._offered, is_all=self._is_start)
        blanks = self._take_blanks()
        return (blanks + text if text or not calls else ""), calls

    def _take(self) -> str:
        held, self._held, self._more = self._held + "".join(self._more), "", []
        return held

    def _take_blanks(self) -> str:
        blanks, self._blanks = "".join(self._blanks), []
        return blanks

    def _judge(self) -> str:
        """Take off what can be shown of what is held."""
        if self._is_start:
            head = self._held[:LOOKED_AT]
            if not head or self._may_be_all(head):
                self._is_sure = len(head) == LOOKED_AT
                return ""
            self._is_start = False
        place = 0
        for mark in _MARK.finditer(self._held):
            if self._may_follow(mark.end()):
                self._is_sure = len(self._held) >= mark.end() + LOOKED_AT
                cut = mark.start()
                break
            place = mark.end()
        else:
            cut = self._beginning_of_mark(place)
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def _may_be_all(self, start: str) -> bool:
        """Whether an answer that begins like this may be one printed call from end to end."""
        if start[0] == "`":
            head, newline, rest = start.partition("\n")
            head, rest = head.rstrip().lower(), rest.lstrip()
            if not newline:
                return any(known.startswith(head) for known in _FENCE_HEADS)
            if head not in {"```", *_FENCE_HEADS}:
                return False
            word = _WORD.match(rest)
            is_code = word is not None and self._is_name(word[1], whole=word.end() < len(rest))
            return not rest or is_code or self._may_be_value(rest)
        return self._may_be_value(start)

    def _may_be_value(self, start: str) -> bool:
        if start[0] == "[":
            inner = start[1:].lstrip()
            word = _WORD.match(inner)
            is_code = word is not None and self._is_name(word[1], whole=word.end() < len(inner))
            return not inner or is_code or (inner[0] == "{" and self._may_be_value(inner))
        head = _HEAD.match(start)
        if head is None or head[1] is None:
            return head is not None and head.end() == len(start)
        keys = (*CALL_KEYS, *ARGUMENT_KEYS)
        if head[2] is None:
            return any(key.startswith(head[1]) for key in keys)
        if head[1] in {"name", "tool", "tool_name"} and head[3] is not None:
            return self._is_name(head[3].removeprefix("functions."), whole=head[4] is not None)
        return head[1] in keys

    def _may_follow(self, end: int) -> bool:
        """Whether what is behind a mark may be a call."""
        behind = self._held[end : end + LOOKED_AT].lstrip(" \t\r\n\"'`")
        if not behind or behind[0] in "{[<" or "function".startswith(behind):
            return True
        word = _WORD.match(behind)
        if word is None:
            return False
        is_whole = word.end() < len(behind)
        return self._is_name(word[1], whole=is_whole) or (
            word[1] in _BEFORE_CALL if is_whole else any(known.startswith(word[1]) for known in _BEFORE_CALL)
        )

    def _is_name(self, word: str, *, whole: bool) -> bool:
        return word in self._offered if whole else any(name.startswith(word) for name in self._offered)

    def _beginning_of_mark(self, place: int) -> int:
        """Where behind `place`, at the end of what is held, a mark may have begun."""
        start = max(place, len(self._held) - _LONGEST + 1)
        for opening in _OPENING.finditer(self._held, start):
            if self._held[opening.start() :] in _BEGINNINGS:
                return opening.start()
        return len(self._held)


def find_calls(text: str, offered: Offered, *, is_all: bool = True) -> tuple[list[PrintedCall], str]:
    """The calls that a text prints, and the text without them; `is_all`: it is the whole answer.

    Of a long text only the end is searched.
    """
    before, text = text[:-LONGEST], text[-LONGEST:]
    found = list(_marked(text, offered))
    if not found:
        whole = list(_whole(text.strip(), offered)) if is_all and not before else []
        return (whole, "") if whole else ([], before + text)
    rest, place = [before], 0
    for start, end, _ in found:
        rest.append(text[place:start])
        place = end
    left = _WRAPPING.sub("", "".join([*rest, text[place:]]))
    return [call for *_, calls in found for call in calls], left if left.strip() else ""


def _marked(text: str, offered: Offered) -> Iterator[tuple[int, int, list[PrintedCall]]]:
    """Start, end and calls of each stretch behind a mark that holds any; none is read twice."""
    unclosed: set[Form] = set()
    place = looked = 0
    while looked < MOST_LOOKED and (mark := _MARK.search(text, place)) is not None:
        place, start = mark.end(), mark.start()
        for form in FORMS:
            if (head := form.head.match(text, start)) is not None:
                place, calls = _element(text, form, head, offered, unclosed)
                break
        else:
            if (head := _BEFORE_JSON.match(text, start)) is not None:
                values, place = _values(text, head.end())
                found = (call_of(item, offered) for item in items(values))
                calls = [call for call in found if call is not None]
            elif mark[0] == _CODE:
                end = text.find(_CODE, place) if _CODE in text[place:] else len(text)
                calls = list(code_calls(_WRAPPING.sub("", text[place:end]).strip(), offered))
                place = end if calls else place
            else:
                continue
        looked += 1
        if calls:
            yield start, place, calls


def _element(
    text: str, form: Form, head: re.Match[str], offered: Offered, unclosed: set[Form]
) -> tuple[int, list[PrintedCall]]:
    """Where the element behind a head ends, and its call; `unclosed`: forms whose end does not come any more."""
    name, start = head[1], head.end()
    close = form.close.search(text, start) if form not in unclosed else None
    if close is None:
        unclosed.add(form)
        if form.part is not None:
            return start, []
    inner, end = (text[start : close.start()], close.end()) if close else (text[start:], len(text))
    if name not in offered:
        return end, []
    if form.part is None:
        return end, [(name, inner.strip())]
    parts = {key: typed(value, key, offered[name]) for key, value in _parts(inner, *form.part)}
    return end, [(name, json.dumps(parts, ensure_ascii=False))]


def _parts(inner: str, head: re.Pattern[str], close: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each argument, up to the first that has no end."""
    place = 0
    while (opened := head.search(inner, place)) and (closed := close.search(inner, opened.end())):
        yield opened[1].strip(), inner[opened.end() : closed.start()]
        place = closed.end()


def _values(text: str, start: int) -> tuple[list[Any], int]:
    """The values from `start` on, written as JSON or as a Python dict, and where they end."""
    if text.startswith("{{", start):  # some templates teach models to double the braces
        start += 1
    values, end = json_values(text, start)
    if not values:
        behind = _BEHIND_VALUE.search(text, start)
        end = behind.start() if behind else len(text)
        values = [python_dict(text[start:end].strip())]
    behind = _BEHIND_JSON.match(text, end)
    return values, behind.end() if behind else end


def _whole(text: str, offered: Offered) -> Iterator[PrintedCall]:
    """The calls of an answer that is nothing but calls."""
    inner = unfenced(text)
    text = _WRAPPING.sub("", inner or text).strip()
    values, end = _values(text, 0)
    calls = [call_of(item, offered) for item in items(values)]
    if end == len(text) and None not in calls:
        yield from (call for call in calls if call is not None)
    elif inner or text.startswith("["):
        yield from code_calls(text, offered)
