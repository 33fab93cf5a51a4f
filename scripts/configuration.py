"""Writes docs/configuration.md from `Settings`: every key, its variable, type, default, and what its docstring says."""

from __future__ import annotations

import ast
import json
import sys
import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from miniclaw.config import FLAT_NAMES
from miniclaw.settings import Settings

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "configuration.md"
HEAD = """# 设置

本页由 `make docs` 从代码里的 `Settings` 生成，测试检查它是最新的；说明一栏是代码里的原文（英文）。

设置写在数据目录的 `miniclaw.toml`，也可以来自别处，靠前的优先：命令行参数、环境变量、数据目录的 `.env`、项目的 `.env`（程序所在的那份代码，或它的 `.venv` 旁边，而且与程序属于同一个用户；`MINICLAW_PROJECT` 可以另指一处，空着就不读）、`miniclaw.toml`、默认值。
任何不认识的键都是错误。`miniclaw config show` 列出当前的值和来处。环境变量里，列表用逗号分开，表写成 JSON，`none` 表示没有；名字里带 `<…>` 的节只能写在文件里，所以没有变量。
数据目录本身由 `--data-dir` 或 `MINICLAW_HOME` 决定，默认 `~/.miniclaw`。
"""


@cache
def docstrings(module: str) -> dict[tuple[str, str], str]:
    """What stands under each field of the classes of a module; under an empty name, the class's own."""
    found: dict[tuple[str, str], str] = {}
    tree = ast.parse(Path(sys.modules[module].__file__ or "").read_text(encoding="utf-8"))
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        found[cls.name, ""] = ast.get_docstring(cls) or ""
        field = ""
        for node in cls.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                field = node.target.id
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and field:
                found[cls.name, field] = str(node.value.value)
                field = ""
            else:
                field = ""
    return found


def about(model: type[BaseModel], field: str = "") -> str:
    """The docstring of a field, also of one that is inherited."""
    owners = [cls for cls in model.__mro__ if cls.__module__.startswith("miniclaw.")]
    texts = (docstrings(cls.__module__).get((cls.__name__, field), "") for cls in owners)
    return " ".join(next(filter(None, texts), "").split())


def inner(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The section that an annotation holds, and what stands for its name: nothing, `<name>` or `[]`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    if origin is dict:
        model, mark = inner(args[1])
        return model, f".<name>{mark}" if model else ""
    if origin is tuple:
        model, _ = inner(args[0])
        return model, "[]" if model else ""
    return None, ""


def sections(model: type[BaseModel], name: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """This section and all below it, in the order of the file."""
    if name:
        yield name, model
    for field, info in model.model_fields.items():
        below, mark = inner(info.annotation)
        if below is not None:
            yield from sections(below, f"{name}.{field}{mark}".removeprefix("."))


def kind(annotation: Any) -> str:
    """A type in words that a reader of a configuration knows."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " / ".join(f"`{json.dumps(one)}`" for one in args)
    if origin is Annotated:
        return kind(args[0])
    if origin in (Union, types.UnionType):
        shown = [kind(one) for one in args if one is not type(None)]
        return " / ".join(shown) + ("（可无）" if type(None) in args else "")
    if origin is tuple:
        return f"{kind(args[0])}的列表"
    if origin is dict:
        return f"表：{kind(args[1])}"
    names = {str: "文字", int: "整数", float: "数", bool: "真假", SecretStr: "密钥", typing.Any: "任意"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def rows(model: type[BaseModel], section: str) -> Iterator[str]:
    """The table of a section."""
    flat = {name: variable for variable, name in FLAT_NAMES.items()}
    for field, info in model.model_fields.items():
        if inner(info.annotation)[0] is not None:
            continue
        name = f"{section}.{field}"
        variable = flat.get(name) or f"MINICLAW_{name.upper().replace('.', '__')}"
        default = info.get_default(call_default_factory=True)
        if default is PydanticUndefined:
            shown = "必填"
        elif default is None or default == "" or isinstance(default, SecretStr):
            shown = ""
        else:
            shown = f"`{json.dumps(default, default=list, ensure_ascii=False)}`"
        reachable = "" if "<" in section or "[" in section else f"`{variable}`"
        yield f"| `{field}` | {kind(info.annotation)} | {shown} | {reachable} | {_cell(about(model, field))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, model in sections(Settings, ""):
        table = list(rows(model, name))
        if not table:
            continue
        title = f"[[{name.removesuffix('[]')}]]" if name.endswith("[]") else f"[{name.replace('[]', '')}]"
        parts.append(f"## `{title}`\n\n{about(model)}\n")
        parts.append("| 键 | 类型 | 默认 | 环境变量 | 说明 |\n| --- | --- | --- | --- | --- |")
        parts.append("\n".join(table) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")
