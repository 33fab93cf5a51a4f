"""小店的 MCP 服务器，标准输入输出上：给 Claude Desktop、Cursor 或者本章的客户端用。

python example/server.py                一行一条消息，等客户端来
python example/server.py --config       打印可以抄进 claude_desktop_config.json 的一段
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from day5_tools import ToolRegistry, calculator_tool, datetime_tool, get_order_status
from day8_mcp import MCPServer, RegistryTools, serve_stdio, take_stdio


def shop_server() -> MCPServer:
    """三样只读的工具。"""
    registry = ToolRegistry([get_order_status, calculator_tool(), datetime_tool()])
    return MCPServer(name="shop", tools=[RegistryTools(registry)])


def desktop_config() -> str:
    """Claude Desktop 要的写法：程序用全路径，它不在我们的虚拟环境里。"""
    entry = {"command": sys.executable, "args": [str(Path(__file__).resolve())]}
    return json.dumps({"mcpServers": {"shop": entry}}, ensure_ascii=False, indent=2)


if __name__ == "__main__":
    if "--config" in sys.argv:
        print(desktop_config())
    else:
        try:
            source, target = take_stdio()  # 最先做：后面谁 print 都不会弄坏协议
        except OSError:
            sys.exit("没有标准输入输出，没法当 MCP 服务器。")
        try:
            asyncio.run(serve_stdio(shop_server(), source, target))
        except KeyboardInterrupt:
            sys.exit(130)
