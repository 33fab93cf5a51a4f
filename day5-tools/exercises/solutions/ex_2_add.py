"""加：先解析，再判断，最后才打开。"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from day5_tools import Tool, ToolError, tool

Search = Callable[[str], Awaitable[list[dict[str, str]]]]
MAX_BYTES = 100_000
MAX_RESULTS = 5


# region inside
def inside(root: Path, path: str) -> Path:
    """`root` 里面的那个路径；符号链接和 `..` 都先走到头，再看落在哪里。"""
    base = root.resolve()
    try:
        found = (base / path).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # 空字符，或者绕圈的链接
        raise ToolError(f"{path[:100]!r} is no path.") from error
    if found == base or not found.is_relative_to(base):
        raise ToolError(f"`{path[:100]}` leads out of the workspace. Use a path inside it.")
    return found


# endregion


def _replace(target: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent)
    fresh = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # 先落到盘上，再换名；反过来，断电之后可能是一个空文件
        fresh.replace(target)  # 换名是一下子的事：要么旧的，要么新的
    finally:
        fresh.unlink(missing_ok=True)  # 换成功了，它已经不在；没成，不留下


def file_tools(root: Path) -> list[Tool]:
    # region files
    @tool(risk="read")
    def read_file(path: str) -> str:
        """Read a text file of the workspace."""
        try:
            with inside(root, path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ToolError(f"`{path}` cannot be read: {error.strerror}.") from error
        if len(data) > MAX_BYTES:
            raise ToolError(f"`{path}` is larger than {MAX_BYTES:,} bytes.")
        return data.decode("utf-8", "replace")

    @tool
    def write_file(path: str, content: str) -> str:
        """Write a text file of the workspace."""
        target = inside(root, path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _replace(target, content.encode())
        except (OSError, UnicodeEncodeError) as error:
            raise ToolError(f"`{path}` cannot be written: {error}.") from error
        return f"{path}: {len(content)} characters"

    # endregion
    return [read_file, write_file]


def web_search_tool(search: Search) -> Tool:
    @tool(risk="read")
    async def web_search(query: str) -> str:
        """Search the web."""
        try:
            found = (await search(query))[:MAX_RESULTS]
        except OSError as error:
            raise ToolError("The search does not answer; try again later.") from error
        rows = (
            f"[{number}] {one['title']}\n{one['url']}\n{one['content']}"
            for number, one in enumerate(found, 1)
        )
        return "\n\n".join(rows) or "Nothing was found. Use other words."

    return web_search
