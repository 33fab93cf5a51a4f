"""Settings: one frozen model a section, read once at start; where each value came from can be told.

Order: argument > environment > `.env` of the data directory > of our project > `miniclaw.toml` > default.
Nothing else reads the environment.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from miniclaw.errors import ConfigError
from miniclaw.rundir import check_restored
from miniclaw.settings import (
    AgentConfig,
    ApprovalSettings,
    ChannelSettings,
    Clock,
    ContextSettings,
    DeliverySettings,
    GatewaySettings,
    LimitSettings,
    LogSettings,
    MemorySettings,
    ModelSettings,
    Settings,
    SkillSettings,
    StorageSettings,
    ToolSettings,
    WebSettings,
)

__all__ = [
    "Clock",
    "LoadedSettings",
    "AgentConfig",
    "ApprovalSettings",
    "ChannelSettings",
    "ContextSettings",
    "DeliverySettings",
    "GatewaySettings",
    "LimitSettings",
    "LogSettings",
    "MemorySettings",
    "ModelSettings",
    "Settings",
    "SkillSettings",
    "StorageSettings",
    "ToolSettings",
    "WebSettings",
    "find_data_dir",
    "load_settings",
]


CHECKOUTS: tuple[Path, ...] = (Path(__file__).parents[1], Path(sys.prefix).parent)
"""Where our project may be: around the package (`make run`), or around the `.venv` it is installed in."""
FLAT_NAMES: Final[Mapping[str, str]] = {
    "OPENAI_API_KEY": "model.api_key",
    "OPENAI_API_BASE": "model.base_url",
    "OPENAI_BASE_URL": "model.base_url",
    "OPENAI_API_MODEL": "model.name",
    "OPENAI_MODEL": "model.name",
    "MAX_CONTEXT_TOKENS": "context.max_tokens",
    "MINICLAW_TOKEN": "gateway.token",
    "MINICLAW_REDIS_URL": "redis.url",
    "SLACK_SIGNING_SECRET": "channels.slack.signing_secret",
    "SLACK_BOT_TOKEN": "channels.slack.bot_token",
    "SLACK_BOT_USER_ID": "channels.slack.bot_user_id",
    "SLACK_BOT_ID": "channels.slack.bot_id",
    "SLACK_API_BASE": "channels.slack.api_base",
    "FEISHU_APP_ID": "channels.feishu.app_id",
    "FEISHU_APP_SECRET": "channels.feishu.app_secret",
    "FEISHU_VERIFICATION_TOKEN": "channels.feishu.verification_token",
    "FEISHU_ENCRYPT_KEY": "channels.feishu.encrypt_key",
    "FEISHU_BOT_OPEN_ID": "channels.feishu.bot_open_id",
    "FEISHU_API_BASE": "channels.feishu.api_base",
    "WECOM_CORP_ID": "channels.wecom.corp_id",
    "WECOM_AGENT_ID": "channels.wecom.agent_id",
    "WECOM_SECRET": "channels.wecom.secret",
    "WECOM_TOKEN": "channels.wecom.token",
    "WECOM_ENCODING_AES_KEY": "channels.wecom.encoding_aes_key",
    "WECOM_API_BASE": "channels.wecom.api_base",
    "WECOM_BOT_NAME": "channels.wecom.bot_name",
    "WECOM_BOT_TOKEN": "channels.wecom.bot_token",
    "WECOM_BOT_ENCODING_AES_KEY": "channels.wecom.bot_encoding_aes_key",
    "DINGTALK_APP_SECRET": "channels.dingtalk.app_secret",
    "GENERIC_WEBHOOK_SECRET": "channels.generic.secret",
    "SEARCH_BACKEND": "tools.search_backend",
    "TAVILY_API_KEY": "tools.tavily_api_key",
    "TAVILY_BASE_URL": "tools.tavily_base_url",
    "SEARXNG_URL": "tools.searxng_url",
}
"""Environment variables of their own name; of two for one setting the later in this table wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """The settings, where they belong, and where each value that is no default came from."""

    settings: Settings
    data_dir: Path
    origins: Mapping[str, str] = field(default_factory=dict)


def find_data_dir(argument: str | None, env: Mapping[str, str], *, to_restore: bool = False) -> Path:
    """The data directory: argument, `MINICLAW_HOME`, `~/.miniclaw`, or `./.miniclaw` where home is read-only.

    Raises:
        ConfigError: a restore stopped in the middle, which nothing but another one (`to_restore`) can end.
    """
    home = Path(env.get("HOME") or Path.home())
    directory = (home if os.access(home, os.W_OK) else Path.cwd()) / ".miniclaw"
    if chosen := argument or env.get("MINICLAW_HOME"):
        directory = Path(chosen).expanduser().absolute()
    if not to_restore:
        check_restored(directory)
    return directory


def load_settings(
    *,
    arguments: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    data_dir: str | None = None,
    config_file: str | None = None,
) -> LoadedSettings:
    """Read every source once and merge them.

    Args:
        arguments: values from the command line by dotted name, such as `{"web.port": 0}`.
        env: the environment; `os.environ` when left out.
        data_dir: the argument `--data-dir`.
        config_file: the argument `--config`; it must exist then.

    Raises:
        ConfigError: a file cannot be read, a key is unknown, or a value does not fit; or a restore stopped
            in the middle.
    """
    env = os.environ if env is None else env
    directory = find_data_dir(data_dir, env)
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    sources: list[tuple[str, Mapping[str, Any]]] = [_read_toml(config_file, directory)]
    if project := env.get("MINICLAW_PROJECT", _own_checkout()):
        sources.append(_read_dotenv(Path(project) / ".env"))
    sources.append(_read_dotenv(directory / ".env"))
    sources.append(("environment", _from_environment(env, "environment")))
    sources.append(("argument", arguments or {}))
    for origin, values in sources:
        for name, value in values.items():
            _put(merged, name, value)
            origins[name] = origin
    return LoadedSettings(settings=_validate(merged, origins), data_dir=directory, origins=origins)


def _own_checkout() -> str:
    """The project that this program runs from; never just the current directory, which others may have filled."""
    for directory in CHECKOUTS:
        try:
            owners = {os.stat(__file__).st_uid, (directory / ".env").stat().st_uid}
            table = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # none, or nothing of ours
        if table.get("project", {}).get("name") == "miniclaw" and len(owners) == 1:
            return str(directory)
    return ""


def _read_toml(config_file: str | None, directory: Path) -> tuple[str, Mapping[str, Any]]:
    path = Path(config_file) if config_file else directory / "miniclaw.toml"
    if not config_file and not path.exists():
        return str(path), {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"`{path}` cannot be read: {error}.") from error
    return str(path), dict(_flatten(table))


def _flatten(table: Mapping[str, Any], prefix: str = "", model: type[BaseModel] | None = Settings) -> Any:
    for key, value in table.items():
        name = f"{prefix}{key}"
        inner = _section_of(model, key)
        if isinstance(value, dict) and inner is not None:
            yield from _flatten(value, f"{name}.", inner)
        else:
            yield name, value


def _section_of(model: type[BaseModel] | None, key: str) -> type[BaseModel] | None:
    info = model.model_fields.get(key) if model else None
    annotation = info.annotation if info else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _read_dotenv(path: Path) -> tuple[str, Mapping[str, Any]]:
    if not path.is_file():
        return str(path), {}
    from dotenv import dotenv_values

    try:
        read = dotenv_values(path, encoding="utf-8-sig", interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{path}` cannot be read: {error}.") from error
    return str(path), _from_environment({k: v for k, v in read.items() if v is not None}, str(path))


def _from_environment(env: Mapping[str, str], origin: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable, name in FLAT_NAMES.items():
        if value := env.get(variable, "").strip():
            found[name] = value
    for variable, value in env.items():
        if variable.startswith("MINICLAW_") and "__" in variable:
            name = variable.removeprefix("MINICLAW_").lower().replace("__", ".")
            found[name] = _parse_value(name, value, f"{variable} ({origin})")
    return found


def _parse_value(name: str, value: str, origin: str) -> Any:
    """Lists may be written separated by commas, tables as JSON; everything else is left to validation."""
    model: type[BaseModel] | None = Settings
    *sections, key = name.split(".")
    for section in sections:
        model = _section_of(model, section)
    if model is None or key not in model.model_fields:
        raise ConfigError(f"{origin}: there is no setting `{name}`; remove it.")
    kind = str(model.model_fields[key].annotation)
    if value.lower() == "none" and "None" in kind:
        return None
    if kind.startswith("dict"):
        with contextlib.suppress(ValueError):
            return from_json(value)
    return [part.strip() for part in value.split(",") if part.strip()] if kind.startswith("tuple") else value


def _put(tree: dict[str, Any], name: str, value: Any) -> None:
    *sections, key = name.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"`{name}`: `{section}` is a value, not a section.")
    tree[key] = value


def _validate(merged: dict[str, Any], origins: Mapping[str, str]) -> Settings:
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        related = (
            o for n, o in origins.items() if f"{name}.".startswith(f"{n}.") or n.startswith(f"{name}.")
        )
        origin = next(related, None)
        where = f" ({origin})" if origin else ""
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"`{name}`{where}: there is no such setting; remove it.") from error
        raise ConfigError(f"`{name}`{where}: {first['msg']}.") from error
