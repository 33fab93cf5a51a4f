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
        fields[key] = [*(fields[key] or ()), _plain(item[1])]
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
        if not value.endswith("]"):
            return f"`{name}`: the list has no closing `]`", ""
        value_list = [_plain(one) for one in value[1:-1].split(",") if one.strip()]
        fields[name] = value_list
        return "", ""
    fields[name] = _plain(value)
    return "", "" if value else name


def _plain(value: str) -> str:
    """去掉引号；没有引号的，去掉后面的注释。"""
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return re.split(r"\s#", value)[0].rstrip()
