"""文件开头两行 `---` 之间的几行：用手读，只认技能用得着的那点 YAML。

认得 `键: 值`、`键: [a, b]`、`键:` 下面的 `- a`、引号和 `#` 注释。别的写法不猜，报出行号。
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["FrontMatter", "FrontMatterProblem", "parse_front_matter"]

_PAIR = re.compile(r"([A-Za-z_][\w-]*):(?:\s+(.*))?")
_ITEM = re.compile(r"\s*-\s+(.+)")
_PART = re.compile(r"""\s*("[^"]*"|'[^']*'|[^\s,\[\]"'][^,\]]*)?\s*([,\]])""")
_FOREIGN = re.compile(
    r"[\[\]{}|>&*!%@`,]|[-?](\s|$)|.*:(\s|$)"
)  # YAML 的别的写法：列表里的列表、`- x`、`词: x`……
_QUOTES = "the quotes are not closed, something follows them, or the value wants quotes"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMatter:
    """读懂的文件。值只有文字和文字的列表：`version: 1.10` 还是 `1.10`，不会变成 1.1。"""

    fields: dict[str, Any]
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMatterProblem:
    """读不懂，在第几行，为什么。"""

    line: int
    reason: str


def parse_front_matter(text: str) -> FrontMatter | FrontMatterProblem:
    """拆开一个 Markdown 文件；认得 BOM 和 CRLF。"""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        return FrontMatterProblem(line=1, reason="the file does not begin with front matter (a line `---`)")
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        return FrontMatterProblem(line=1, reason="the front matter has no closing line `---`")
    fields: dict[str, Any] = {}
    key = ""
    for number, line in enumerate(lines[1:end], 2):
        problem, key = _read_line(line, key, fields)
        if problem:
            return FrontMatterProblem(line=number, reason=problem)
    return FrontMatter(fields=fields, body="\n".join(lines[end + 1 :]))


def _read_line(line: str, key: str, fields: dict[str, Any]) -> tuple[str, str]:
    """读一行进 `fields`；返回哪里不对（空就是没有），和后面的 `- 项` 属于哪个键。"""
    if not line.strip() or line.lstrip().startswith("#"):
        return "", key
    if (item := _ITEM.fullmatch(line)) is not None and key:
        if (text := _plain(item[1])) is None:
            return f"`{key}`: {_QUOTES}", ""
        fields[key] = [*(fields[key] or ()), text]
        return "", key
    pair = _PAIR.fullmatch(line.rstrip())
    if pair is None:
        return f"this line is not understood: {line.strip()[:40]!r}", ""
    name, value = pair[1], (pair[2] or "").strip()
    if name in fields:
        return f"the key `{name}` stands there twice", ""
    if value[:1] in ("{", "|", ">", "&", "*", "!"):
        return f"`{name}`: write it as one line of text or as a list", ""
    if value.startswith("["):
        if (found := _list(value)) is None:
            return f"`{name}`: the list is not understood, or has no closing `]`", ""
        fields[name] = found
        return "", ""
    if (text := _plain(value)) is None:
        return f"`{name}`: {_QUOTES}", ""
    fields[name] = text
    return "", "" if text else name


def _list(value: str) -> list[str] | None:
    """`[a, "b, c"]  # 注释`；读不懂就是 `None`。"""
    found, place = list[str](), 1
    while (part := _PART.match(value, place)) is not None:
        if part[1]:
            if (text := _plain(part[1])) is None:
                return None
            found.append(text)
        place = part.end()
        if part[2] == "]":
            return found if value[place:].strip()[:1] in ("", "#") else None
    return None


def _plain(value: str) -> str | None:
    """引号里的原样，没有引号的去掉后面的注释；引号没关上、后面还有话，或者是别的写法，就是 `None`。"""
    value = value.strip()
    if value[:1] not in ("'", '"'):
        text = re.split(r"(?:^|\s)#", value)[0].rstrip()
        return None if _FOREIGN.match(text) else text
    inside, quote, rest = value[1:].partition(value[0])
    return inside if quote and rest.strip()[:1] in ("", "#") else None
