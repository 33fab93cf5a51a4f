"""`mcp.json`：用哪些服务器。和 Claude Desktop 的 `mcpServers` 一个写法，可以整段抄过来。"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from day5_tools import ConfigError


class ServerConfig(BaseModel):
    """一个服务器：一个程序（`command`），或者一个 `url`。别家多写的键，略过。"""

    model_config = ConfigDict(extra="ignore", frozen=True)
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    trusted: bool = False  # 它说一个工具只读，信不信


class ServerList(NamedTuple):
    """能用的，和写坏的（为什么）。"""

    servers: Mapping[str, ServerConfig]
    broken: Mapping[str, str]


def read_servers(path: Path, environ: Mapping[str, str] = os.environ) -> ServerList:
    """读文件；坏一个不连累别的，没有文件就是没有服务器，整个读不了才是 `ConfigError`。"""
    servers, broken = dict[str, ServerConfig](), dict[str, str]()
    try:
        text = path.read_text(encoding="utf-8-sig") if path.exists() else '{"mcpServers": {}}'
        entries = dict(json.loads(text)["mcpServers"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"`{path}` must be a JSON object with `mcpServers`.") from error
    for name, entry in entries.items():
        try:
            config = ServerConfig.model_validate(_expand(entry, environ))
            if bool(config.command) == bool(config.url):
                raise ValueError("give either `command` or `url`")
            servers[name] = config
        except ValidationError as error:  # 它的 str 带着读到的值，也许就是密钥
            first = error.errors(include_input=False, include_url=False)[0]
            broken[name] = f"{path.name}: {name}: {'.'.join(map(str, first['loc']))}: {first['msg']}."
        except (ValueError, RecursionError) as error:
            broken[name] = f"{path.name}: {name}: {error}."
        except KeyError as error:
            broken[name] = f"{path.name}: {name}: the environment variable {error.args[0]} is not set."
    return ServerList(servers, broken)


def _expand(value: Any, environ: Mapping[str, str]) -> Any:
    """`${NAME}` 换成环境变量：密钥不用写进文件。"""
    if isinstance(value, dict):
        return {key: _expand(inner, environ) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expand(inner, environ) for inner in value]
    return re.sub(r"\$\{(\w+)\}", lambda one: environ[one[1]], value) if isinstance(value, str) else value
