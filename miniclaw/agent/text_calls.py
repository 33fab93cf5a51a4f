"""Finds calls that a model prints as text, and holds back what may still become one. No I/O.

Only what names an offered tool is a call; everything else is text, and is shown as such.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from miniclaw.agent.arguments import json_values, python_dict

__all__ = ["CallFilter", "Offered", "PrintedCall", "find_calls"]

Offered = Mapping[str, Mapping[str, Any]]
"""The schemas of the tools that were offered, by name."""
PrintedCall = tuple[str, str]
"""Name and arguments, as the model wrote them."""

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
_OPENING: Final = re.compile(r"[<\[]")
_LONGEST: Final = max(map(len, _MARKS))
_WORD: Final = re.compile(r"(?:functions?\.)?([^\s\"'<>\[\](){}:.=]+)")
_KEYS: Final = frozenset({"type", "id", "name", "function", "tool", "tool_name", "tool_calls"})
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input")
_HEAD: Final = re.compile(r"""\{{1,2}\s*(?:["']([^"']*)(?:(["'])\s*:?\s*(?:["']([^"']*)(["'])?)?)?)?""")
_FENCE: Final = re.compile(r"```(?:json|tool_call|tool_code|xml|python)?\s*(.*?)\s*```", re.DOTALL)
_FENCE_HEADS: Final = ("```json", "```tool_call", "```tool_code", "```python", "```xml")

_DSML: Final = "(?:[｜|]DSML[｜|])?"
_WITH_JSON: Final = (
    re.compile(
        r"<\|tool_call_begin\|>\s*(?:functions\.)?([^\s<]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>"
        r"(.*?)(?:<\|tool_call_end\|>|\Z)",
        re.DOTALL,
    ),
    re.compile(
        r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?([^<\s]+)(?:<｜tool▁sep｜>|\s)(.*?)(?:<｜tool▁call▁end｜>|\Z)",
        re.DOTALL,
    ),
    re.compile(
        r"\[TOOL_CALLS\]\s*([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?(\s*\{.*?)(?=\[TOOL_CALLS\]|\Z)",
        re.DOTALL,
    ),
    re.compile(r"<function=([^>\s]+)>\s*(\{.*?)(?:</function>|\Z)", re.DOTALL),
)
"""Ways to print a call as its name and its arguments in JSON."""
_WITH_PARTS: Final = (
    (
        re.compile(rf'<{_DSML}invoke name="([^"]+)">(.*?)</{_DSML}invoke>', re.DOTALL),
        re.compile(
            rf'<{_DSML}parameter name="([^"]+)"(?: string="(?:true|false)")?>(.*?)</{_DSML}parameter>',
            re.DOTALL,
        ),
    ),
    (
        re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL),
        re.compile(r"<parameter=([^>]+)>\n?(.*?)\n?</parameter>", re.DOTALL),
    ),
    (
        re.compile(r"<tool_call>\s*([\w.-]+)\s*((?:<arg_key>.*?)?)</tool_call>", re.DOTALL),
        re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL),
    ),
)
"""Ways to print a call as its name and an element for each argument."""
_BEFORE_JSON: Final = re.compile(
    r"(?:<tool_calls?>|<\|tool_call\|>|<function_call>|<\|python_tag\|>|\[TOOL_CALLS\])\s*(?:```(?:json)?\s*)?(?=[\[{])"
)
_BEHIND_JSON: Final = re.compile(r"[\s}\]]*")
_BEFORE_CODE: Final = re.compile(r"<\|python_tag\|>\s*")
_WRAPPING: Final = re.compile(
    r"</?(?:tool_calls?|function_calls?|minimax:tool_call|[｜|]DSML[｜|]\w*)>|```|<｜tool▁calls▁(?:begin|end)｜>"
    r"|<\|(?:tool_calls_section_(?:begin|end)|e[om][mt]_id|eot_id|im_end)\|>"
)
"""What stands around calls and means nothing alone."""


class CallFilter:
    """Takes the text of an answer piece by piece and lets through what is certainly not a call."""

    def __init__(self, offered: Offered) -> None:
        self._offered = offered
        self._held = ""
        self._is_start = True

    def feed(self, piece: str) -> str:
        """Take a piece; returns what can be shown by now."""
        if not self._is_start and not self._held and not _OPENING.search(piece):
            return piece
        self._held += piece
        if self._is_start:
            start = self._held.lstrip()
            if not start or self._may_be_all(start):
                return ""
            self._is_start = False
        shown = ""
        while (mark := _MARK.search(self._held)) is not None:
            end = mark.start() if self._may_follow(mark.end()) else mark.end()
            shown, self._held = shown + self._held[:end], self._held[end:]
            if end == mark.start():
                return shown
        cut = self._beginning_of_mark()
        shown, self._held = shown + self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> tuple[str, list[PrintedCall]]:
        """What was held back: the text of it, and the calls."""
        held, self._held = self._held, ""
        calls, text = find_calls(held, self._offered, is_all=self._is_start)
        return text, calls

    def _may_be_all(self, start: str) -> bool:
        """Whether an answer that begins like this may be one printed call from end to end."""
        if start[0] == "`":
            head, newline, rest = start.partition("\n")
            if not newline:
                return any(known.startswith(head.rstrip()) for known in _FENCE_HEADS)
            return head.rstrip() in {"```", *_FENCE_HEADS} and (
                not rest.strip() or self._may_be_value(rest.lstrip())
            )
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
        keys = (*_KEYS, *_ARGUMENTS)
        if head[2] is None:
            return any(key.startswith(head[1]) for key in keys)
        if head[1] in {"name", "tool", "tool_name"} and head[3] is not None:
            return self._is_name(head[3].removeprefix("functions."), whole=head[4] is not None)
        return head[1] in keys

    def _may_follow(self, end: int) -> bool:
        """Whether what is behind a mark may be a call."""
        behind = self._held[end : end + 200].lstrip(" \t\r\n\"'`")
        if not behind or behind[0] in "{[<" or "function".startswith(behind):
            return True
        word = _WORD.match(behind)
        if word is None:
            return False
        return word[1] in {"json", "function", "functions"} or self._is_name(
            word[1], whole=word.end() < len(behind)
        )

    def _is_name(self, word: str, *, whole: bool) -> bool:
        return word in self._offered if whole else any(name.startswith(word) for name in self._offered)

    def _beginning_of_mark(self) -> int:
        """Where at the end of what is held a mark may have begun."""
        start = max(0, len(self._held) - _LONGEST + 1)
        for opening in _OPENING.finditer(self._held, start):
            if any(mark.startswith(self._held[opening.start() :]) for mark in _MARKS):
                return opening.start()
        return len(self._held)


def find_calls(text: str, offered: Offered, *, is_all: bool = True) -> tuple[list[PrintedCall], str]:
    """The calls that a text prints, and the text without them; `is_all`: it is the whole answer."""
    found = sorted(_marked(text, offered)) if _MARK.search(text) else []
    if not found:
        whole = list(_whole(text.strip(), offered)) if is_all else []
        return (whole, "") if whole else ([], text)
    rest, calls, place = "", [], 0
    for start, end, call in found:
        if start >= place:
            rest += text[place:start]
            place = end
        calls.append(call)
    rest = _WRAPPING.sub("", rest + text[place:])
    return calls, rest if rest.strip() else ""


def _marked(text: str, offered: Offered) -> Iterator[tuple[int, int, PrintedCall]]:
    """Start, end, name and arguments of each call behind a mark."""
    for pattern in _WITH_JSON:
        for match in pattern.finditer(text):
            if match[1] in offered:
                yield match.start(), match.end(), (match[1], match[2].strip())
    for pattern, part in _WITH_PARTS:
        for match in pattern.finditer(text):
            if match[1] in offered and not match[2].lstrip().startswith("{"):
                parts = {
                    key.strip(): _typed(value, key, offered[match[1]])
                    for key, value in part.findall(match[2])
                }
                yield match.start(), match.end(), (match[1], json.dumps(parts, ensure_ascii=False))
    for match in _BEFORE_JSON.finditer(text):
        values, end = _values(text, match.end())
        for item in _items(values):
            if (call := _call_of(item, offered)) is not None:
                yield match.start(), end, call
    for match in _BEFORE_CODE.finditer(text):
        for call in _code_calls(text[match.end() :], offered):
            yield match.start(), len(text), call


def _values(text: str, start: int) -> tuple[list[Any], int]:
    """The values from `start` on, written as JSON or as a Python dict, and where they end."""
    if text.startswith("{{", start):  # some templates teach models to double the braces
        start += 1
    values, end = json_values(text, start)
    if not values:
        block = text[start:].partition("</")[0]
        values, end = [python_dict(block.strip())], start + len(block)
    behind = _BEHIND_JSON.match(text, end)
    return values, behind.end() if behind else end


def _whole(text: str, offered: Offered) -> Iterator[PrintedCall]:
    """The calls of an answer that is nothing but calls."""
    if (fenced := _FENCE.fullmatch(text)) is not None:
        text = fenced[1]
    text = _WRAPPING.sub("", text).strip()
    values, end = _values(text, 0)
    calls = [_call_of(item, offered) for item in _items(values)]
    if end == len(text) and None not in calls:
        yield from (call for call in calls if call is not None)
    elif text.startswith("["):
        yield from _code_calls(text, offered)


def _items(values: list[Any]) -> Iterator[Any]:
    for value in values:
        inner = value.get("tool_calls") if isinstance(value, dict) else value
        if isinstance(inner, list):
            yield from inner
        else:
            yield value


def _call_of(item: Any, offered: Offered) -> PrintedCall | None:
    """The call that an object means: a name and arguments, and nothing that a call does not have."""
    if not isinstance(item, dict):
        return None
    if isinstance(inner := item.get("function"), dict):
        item = inner
    if not item.keys() <= {*_KEYS, *_ARGUMENTS}:
        return None
    names = (item.get(key) for key in ("name", "function", "tool", "tool_name"))
    name = next((str(name).removeprefix("functions.") for name in names if isinstance(name, str)), "")
    arguments = next((item[key] for key in _ARGUMENTS if key in item), None)
    if name not in offered or not isinstance(arguments, dict | str):
        return None
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _code_calls(text: str, offered: Offered) -> Iterator[PrintedCall]:
    """Calls written as Python: `[get_time(zone="UTC")]`, `get_time.call(zone="UTC")`."""
    try:
        tree = ast.parse(_WRAPPING.sub("", text).strip(), mode="eval").body
        for node in tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]:
            function = node.func if isinstance(node, ast.Call) and not node.args else None
            if isinstance(function, ast.Attribute) and function.attr == "call":
                function = function.value
            if isinstance(node, ast.Call) and isinstance(function, ast.Name) and function.id in offered:
                found = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
                yield function.id, json.dumps(found, ensure_ascii=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return


def _typed(value: str, key: str, schema: Mapping[str, Any]) -> Any:
    """The value of an element: a string where the schema says so, else what it is in JSON."""
    properties = schema.get("properties")
    wanted = properties.get(key.strip()) if isinstance(properties, Mapping) else None
    if isinstance(wanted, Mapping) and wanted.get("type") == "string":
        return value
    values, end = json_values(value.strip()) if value.strip()[:1] in {"{", "["} else ([], 0)
    if values:
        return values[0]
    try:
        return json.loads(value)
    except ValueError:
        return value
