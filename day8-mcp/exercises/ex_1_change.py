"""改：别人起的名字，模型的接口不一定认。

`remote_name(server, tool)` 给一个远程工具起我们这边的名字。现在带着点和中文，有的还太长，注册表不收。
改成 `mcp__<服务器>__<工具>`：字母、数字、`_`、`-` 以外的字都换成 `_`，最多 64 个字；
太长的、换过字的、看不出在哪里断开的，末尾要加上能分清它们的几个字，不同的（服务器，工具）永远不同名，同样的永远同名。
"""

from __future__ import annotations


def remote_name(server: str, tool: str) -> str:
    return f"{server}.{tool}"
