"""`mcp.json`: the servers that are used, in the `mcpServers` form of other hosts, whose file can be copied in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from miniclaw.errors import ConfigError
from miniclaw.mcp.client.connection import Era
from miniclaw.whole_file import whole_file

__all__ = ["FILE", "Login", "ServerConfig", "ServerList", "read_servers", "set_disabled"]

FILE: Final = "mcp.json"
_VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
SECRET_LENGTH: Final = 8
"""Characters from which on a value is taken for a secret."""


class _Lenient(BaseModel):
    """Keys of other hosts are passed over; ours are written as theirs are, and a number for a text is one."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
    )


class Login(_Lenient):
    """Our side of a login, where the server cannot do without."""

    client_id: str = ""
    client_secret: str = ""
    metadata_url: str = ""
    scope: str = ""


class ServerConfig(_Lenient):
    """One server: a program (`command`) or a URL."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: Path | None = None
    url: str = ""
    type: Literal["stdio", "http", "streamable-http", "streamableHttp", "sse"] | None = None
    headers: dict[str, str] = {}
    oauth: Login = Login()
    disabled: bool = False
    trusted: bool = False
    """Whether its word that a tool only reads is taken, so that the tool need not be asked for."""
    era: Era = "auto"
    start_seconds: Annotated[float, Field(gt=0)] = 60.0
    call_seconds: Annotated[float, Field(gt=0)] = 60.0
    roots: tuple[Path, ...] | None = None
    """The directories that it is told of; when left out the owner's workspace and those among its arguments."""
    tools: tuple[str, ...] | None = None
    """The only tools that are taken from it; all when left out."""

    def directories(self) -> list[Path]:
        """The directories that the command line names; what cannot be looked at is none."""
        return [path for path in map(Path, self.args) if path.is_absolute() and os.path.isdir(path)]

    def masked(self, text: str) -> str:
        """A text that the server may have had its say in, without what `env` and `headers` gave it."""
        for value in (*self.env.values(), *self.headers.values()):
            for secret in (value, value.rpartition(" ")[2]):
                text = text.replace(secret, "***") if len(secret) >= SECRET_LENGTH else text
        return text

    @model_validator(mode="before")
    @classmethod
    def _as_others_write_it(cls, value: Any) -> Any:
        """`serverUrl` (Windsurf) and `httpUrl` (Gemini CLI) are the `url`; what is `null` is left out."""
        if not isinstance(value, dict):
            return value
        given = {key: one for key, one in value.items() if one is not None}
        urls = [given.pop(key) for key in ("serverUrl", "httpUrl") if key in given]
        return {**given, "url": urls[0]} if urls else given

    @model_validator(mode="after")
    def _one_of_both(self) -> ServerConfig:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either `command` or `url`")
        if self.url and not self.disabled:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
                raise ValueError("`url` must begin with http:// or https:// and name a host")
        if self.type == "sse":
            raise ValueError(
                "the old transport `sse` is not spoken; most servers offer `http` at /mcp as well"
            )
        return self


@dataclass(frozen=True, slots=True)
class ServerList:
    """What the file says.

    Attributes:
        servers: by name.
        broken: servers whose entry cannot be used, and why.
    """

    servers: Mapping[str, ServerConfig]
    broken: Mapping[str, str]


def read_servers(path: Path, environ: Mapping[str, str] = os.environ) -> ServerList:
    """The servers of a file; one that is wrong leaves the others as they are. No file is no servers.

    Raises:
        ConfigError: the file as a whole cannot be read.
    """
    servers: dict[str, ServerConfig] = {}
    broken: dict[str, str] = {}
    for name, entry in _entries(_load(path)).items():
        try:
            is_off = isinstance(entry, dict) and entry.get("disabled") is True
            servers[name] = ServerConfig.model_validate(entry if is_off else _expand(entry, environ))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            broken[name] = f"{path.name}: {name}{'.' if where else ''}{where}: {first['msg']}."
        except ConfigError as error:
            broken[name] = f"{path.name}: {name}: {error}"
    return ServerList(servers, broken)


def set_disabled(path: Path, name: str, *, is_disabled: bool) -> None:
    """Switch a server on or off in the file.

    Raises:
        ConfigError: there is no such server, or the file cannot be written.
    """
    value = _load(path)
    entry = _entries(value).get(name)
    if not isinstance(entry, dict):
        raise ConfigError(f"There is no MCP server `{name}` in `{path}`.")
    entry.pop("disabled", None)
    if is_disabled:
        entry["disabled"] = True
    try:
        with whole_file(path, path.stat().st_mode & 0o777) as file:
            file.write((json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be written: {error.strerror}.") from error


def _load(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
        # Escapes that are half a character can be neither printed nor written: they become `?`.
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"`{path}` is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"`{path}` must be an object with `mcpServers`.")
    return value


def _entries(value: Mapping[str, Any]) -> dict[str, Any]:
    entries = value.get("mcpServers", value.get("servers", {}))  # the second as VS Code writes it
    if not isinstance(entries, dict):
        raise ConfigError("`mcpServers` in mcp.json must be an object: a name and a server each.")
    return entries


def _expand(value: Any, environ: Mapping[str, str]) -> Any:
    """Put environment variables in the place of `${NAME}` and `${NAME:-otherwise}`."""
    if isinstance(value, dict):
        return {key: _expand(inner, environ) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expand(inner, environ) for inner in value]
    return _VARIABLE.sub(lambda found: _variable(found, environ), value) if isinstance(value, str) else value


def _variable(found: re.Match[str], environ: Mapping[str, str]) -> str:
    text = environ.get(found[1], found[2])
    if text is None:
        raise ConfigError(f"the environment variable {found[1]} is not set.")
    return text
