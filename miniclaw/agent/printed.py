"""Finds the calls in a text that prints them. No I/O.

Only what names an offered tool is a call; everything else is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from miniclaw.agent.arguments import (
    Offered,
    PrintedCall,
    call_of,
    code_calls,
    items,
    json_values,
    plain_name,
    python_dict,
    typed,
    unfenced,
)
from miniclaw.agent.call_forms import (
    BEFORE_CODE,
    BEFORE_JSON,
    BEHIND_CODE,
    FORMS,
    LOST_PART,
    MARK,
    WRAPPING,
    Form,
)

__all__ = ["LONGEST", "LOOKED_AT", "TOOLS", "find_calls"]

LONGEST: Final = 65_536
"""Characters that are held back and searched for calls; an answer that goes on longer is a text."""
MOST_LOOKED: Final = 64
"""Printed calls of a text that are looked at."""
LOOKED_AT: Final = 200
"""Characters that tell whether a call may begin."""
TOOLS: Final = "functools"
"""What Phi prints before its list of calls."""
_NAMED: Final = re.compile(r"([\w.-]{1,200})[ \t]*\n\s*(?=\{)")
"""A name in a line of its own before its arguments, as GLM prints it."""
_PRINTED: Final = re.compile(r"```tool_code\s*print\((.*)\)\s*```", re.DOTALL)
_BEHIND_JSON: Final = re.compile(r"[\s}\]]*")
_BEHIND_VALUE: Final = re.compile("</|" + MARK.pattern)


def find_calls(
    text: str, offered: Offered, *, is_all: bool = True, before: str = ""
) -> tuple[list[PrintedCall], str]:
    """The calls that a text prints, and the text without them.

    Of a long text only the end is searched.

    Args:
        text: an answer, or the end of one.
        offered: the tools that may be called.
        is_all: whether it is the whole answer.
        before: what the user has read of the answer.
    """
    cut, text = text[:-LONGEST], text[-LONGEST:]
    found = list(_marked(text, offered, (before + cut)[-LONGEST:]))
    if not found:
        whole = list(_whole(text.strip(), offered)) if is_all and not cut else []
        return (whole, "") if whole else ([], cut + text)
    rest, place = [cut], 0
    for start, end, _ in found:
        rest.append(text[place:start])
        place = end
    left = WRAPPING.sub("", "".join([*rest, text[place:]]))
    return [call for *_, calls in found for call in calls], left if left.strip() else ""


def _marked(text: str, offered: Offered, before: str) -> Iterator[tuple[int, int, list[PrintedCall]]]:
    """Start, end and calls of each stretch behind a mark that holds any; none is read twice."""
    unclosed: set[Form] = set()
    place = looked = 0
    while looked < MOST_LOOKED and (mark := MARK.search(text, place)) is not None:
        place, start = mark.end(), mark.start()
        for form in FORMS:
            if (head := form.head.match(text, start)) is not None:
                place, calls = _element(text, form, head, offered, unclosed)
                break
        else:
            if (head := BEFORE_JSON.match(text, start)) is not None:
                values, place = _values(text, head.end())
                found = (call_of(item, offered, is_marked=True) for item in items(values))
                calls = [call for call in found if call is not None]
            elif (head := BEFORE_CODE.match(text, start)) is not None:
                close = BEHIND_CODE.search(text, head.end())
                end = close.start() if close else len(text)
                calls = list(code_calls(text[head.end() : end].strip(), offered))
                place = end if calls else place
            else:
                continue
        looked += 1
        if calls and not _is_quoted(before + text, len(before) + start, len(before) + place):
            yield start, place, calls


def _is_quoted(text: str, start: int, end: int) -> bool:
    """Whether a call is told of and not made: in a code span, in a sentence, or in a fenced example."""
    line = text[text.rfind("\n", 0, start) + 1 : start]
    behind = WRAPPING.sub("", MARK.split(text[end : end + LOOKED_AT])[0]).partition("\n")[0].strip()
    if line.count("`") % 2 or (WRAPPING.sub("", line).strip()[-1:].isalnum() and behind[:1].isalnum()):
        return True
    if text.count("```", 0, start) % 2 == 0:
        return False
    fence = text.rfind("```", 0, start)
    return bool(text[:fence].strip() or text[end:].partition("```")[2].strip())


def _element(
    text: str, form: Form, head: re.Match[str], offered: Offered, unclosed: set[Form]
) -> tuple[int, list[PrintedCall]]:
    """Where the element behind a head ends, and its call; `unclosed`: forms whose end does not come any more."""
    name, start = plain_name(head[1], offered), head.end()
    close = form.close.search(text, start) if form not in unclosed else None
    if close is None:
        unclosed.add(form)
    if form.part is None:
        inner, end = (text[start : close.start()], close.end()) if close else (text[start:], len(text))
        return end, [(name, inner.strip())] if name in offered else []
    if close is None:
        return start, []
    end, parts = _parts(text, start, form, close)
    if name not in offered:
        return end, []
    if parts is None:  # told to the model, which sends it again
        return end, [(name, text[start:end])]
    found = {key: typed(value, key, offered[name]) for key, value in parts.items()}
    return end, [(name, json.dumps(found, ensure_ascii=False))]


def _parts(text: str, place: int, form: Form, close: re.Match[str]) -> tuple[int, dict[str, str] | None]:
    """Where an element ends outside its arguments, and these; `None` where one of them has no end."""
    head, tail = form.part or (form.head, form.close)
    parts: dict[str, str] = {}
    while True:
        opened = head.search(text, place)
        if close.start() < place:
            again = form.close.search(text, place)
            if again is None:
                return close.end(), None
            close = again
        is_last = opened is None or close.start() < opened.start()
        between = text[place : close.start() if opened is None or is_last else opened.start()]
        if LOST_PART.search(between):
            return close.end(), None
        if opened is None or is_last:
            return close.end(), parts
        closed = tail.search(text, opened.end())
        value = text[opened.end() : closed.start()] if closed else ""
        if closed is None or head.search(value, 0):
            return close.end(), None
        parts[opened[1].strip()] = value
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
    if (printed := _PRINTED.fullmatch(text)) is not None:
        text = f"```tool_code\n{printed[1]}\n```"
    inner = unfenced(text)
    text = WRAPPING.sub("", inner or text).strip()
    if text.startswith(TOOLS):
        text = text.removeprefix(TOOLS).lstrip()
    named = _NAMED.match(text)
    values, end = _values(text, named.end() if named else 0)
    calls = [call_of(item, offered) for item in items(values)]
    if named is not None and len(values) == 1 and named[1] in offered:
        calls = [(named[1], json.dumps(values[0], ensure_ascii=False))]
    if end == len(text) and None not in calls:
        yield from (call for call in calls if call is not None)
    elif inner or text.startswith("["):
        yield from code_calls(text, offered)
