"""加：关在一个目录里的文件工具，和网页搜索。

这一题有完整的讲解：先自己写，再看 README 的“带着做的练习”和 `solutions/ex_2_add.py`。

1. `inside(root, path)`：`root` 里面的那个路径。`..`、绝对路径、指向外面的符号链接都要拒绝（`ToolError`）。
   先解析成真正的位置，再判断在不在里面；反过来就晚了。
2. `file_tools(root)`：`read_file(path)` 是 `read`；`write_file(path, content)` 是 `write`，写到一半断电，旧的还在；
   写不成是 `ToolError`，不留下临时文件。
3. `web_search_tool(search)`：`search(query)` 返回 `{"title", "url", "content"}` 的列表；给模型的是编号的几段话。
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from day5_tools import Tool

Search = Callable[[str], Awaitable[list[dict[str, str]]]]


def inside(root: Path, path: str) -> Path:
    return root / path


def file_tools(root: Path) -> list[Tool]:
    return []


def web_search_tool(search: Search) -> Tool | None:
    return None
