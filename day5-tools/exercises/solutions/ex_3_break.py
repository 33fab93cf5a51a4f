"""弄坏它：三样写得粗心的工具，各写一个输入骗过它。

骗过粗心的，骗不过第 5 天的：测试两边都会试。
"""

from __future__ import annotations

from pathlib import Path


def careless_calculator(expression: str) -> object:
    """“反正只是算术”。"""
    return eval(expression, {"SECRET": "店里的密码"})


def careless_path(root: Path, path: str) -> Path | None:
    """“开头对就行”。"""
    return root / path if str(root / path).startswith(str(root)) else None


def careless_host(host: str) -> bool:
    """“不是这两个名字就是外面”。"""
    return host not in ("localhost", "127.0.0.1")


EXPRESSION = "SECRET"  # 让 careless_calculator 说出密码
PATH = "../shop-secret/key.txt"  # 让 careless_path 给出 root 外面的路径
HOST = "2130706433"  # 让 careless_host 放行，其实通到本机
