"""连一个真的社区服务器，看看它有什么。要联网，会下载程序，所以只能手动跑，不在自动检查里。

python example/community_server.py                         默认：uvx mcp-server-time
python example/community_server.py npx -y @modelcontextprotocol/server-everything
python example/community_server.py https://…/mcp           一个 URL
"""

from __future__ import annotations

import asyncio
import sys

from day8_mcp import HttpLink, MCPClient, MCPError, StdioLink


def link(words: list[str]) -> StdioLink | HttpLink:
    """一个 URL，或者一条命令。"""
    if words[0].startswith(("http://", "https://")):
        return HttpLink(words[0])
    return StdioLink(words, env={})


async def main() -> int:
    """列出工具；是时间服务器，就顺便问一次。"""
    words = sys.argv[1:] or ["uvx", "mcp-server-time"]
    try:
        async with MCPClient(lambda: link(words)) as client:
            print(f"版本 {client.version}")
            tools = await client.list_tools()
            for one in tools:
                print(f"- {one['name']}: {' '.join(str(one.get('description', '')).split())[:80]}")
            if any(one["name"] == "get_current_time" for one in tools):
                result = await client.call_tool("get_current_time", {"timezone": "Asia/Shanghai"})
                print(result["content"][0]["text"])
    except MCPError as error:
        print(f"没有成功：{error}")
        return 1
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(asyncio.run(main()))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
