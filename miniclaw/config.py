"""Settings: one frozen model a section, read once at start; where each value came from can be told.

Order: argument > environment > `.env` > `miniclaw.toml` > default. Nothing else reads the environment.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_core import from_json

from miniclaw.errors import ConfigError

__all__ = ["LoadedSettings", "Settings", "find_data_dir", "load_settings"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GatewaySettings(_Section):
    """The raw WebSocket gateway."""

    host: str = "127.0.0.1"
    port: int | None = Field(default=8765, ge=0, le=65535)
    """0 = any free port; `None` = no gateway."""
    ping_interval: float = 20.0
    """Seconds between keep-alive pings."""
    ping_timeout: float = 20.0
    """Seconds a peer may take to answer a ping."""
    send_buffer_bytes: int = 1024 * 1024
    """Unsent bytes at which a reader is slow: it loses deltas and gets a snapshot; at four times as many it
    is closed with 1013 and resumes."""
    max_connections: int = 10_000
    token: SecretStr | None = None
    """The owner's token (`MINICLAW_TOKEN`); made at the first start."""


class WebSettings(_Section):
    """Web chat, HTTP API, webhooks."""

    host: str = "127.0.0.1"
    port: int | None = Field(default=8080, ge=0, le=65535)
    allowed_hosts: tuple[str, ...] = ()
    """Names beside the loopback ones that a request's `Host` may carry."""
    public_url: str = ""
    """The address under which a reverse proxy offers the page; its host is allowed."""


class ModelSettings(_Section):
    """Which model answers."""

    name: str | None = None
    """`None` = the first chat model that the server lists."""
    base_url: str | None = None
    api_key: SecretStr | None = None
    connect_timeout: float = 10.0
    """Seconds to reach the server."""
    read_timeout: float = 120.0
    """Seconds without a byte after which a stream counts as dead."""
    probe_local: bool = True
    """Without key and base URL, look for a model server on this machine."""


class AgentConfig(_Section):
    """The agent loop: how the model is asked and when a turn ends."""

    system_prompt: str = ""
    """Replaces the built-in persona."""
    temperature: float | None = None
    max_tokens: int | None = None
    max_iterations: int = Field(default=20, ge=1)
    max_tool_calls: int = Field(default=40, ge=0)
    turn_timeout: float = Field(default=300.0, gt=0)
    """Seconds one turn may take, waiting for approvals not counted."""
    tool_timeout: float = Field(default=60.0, gt=0)


class LimitSettings(_Section):
    """How much is taken in."""

    message_bytes: int = Field(default=1024 * 1024, ge=1024)
    running: int = Field(default=256, ge=1)
    """Turns at once."""
    waiting: int = Field(default=10_000, ge=1)
    """Turns waiting in all."""
    waiting_per_session: int = Field(default=100, ge=1)
    attempts: int = Field(default=3, ge=1)
    """How often a turn that a crash interrupted is tried."""
    drain_seconds: float = 6.0
    """How long a stop waits for running turns."""


class ApprovalSettings(_Section):
    """Who may run `write` tools without asking."""

    timeout: float = 600.0
    """Seconds a question stays open; then it is denied."""
    allow: tuple[str, ...] = ()
    """Tools that never ask."""
    deny: tuple[str, ...] = ()
    """Tools that are always denied."""


class ToolSettings(_Section):
    """What tools may return."""

    result_chars: int = Field(default=20_000, ge=500)
    """Characters of a result that the model sees; the whole is kept in the workspace."""
    http_allow: tuple[str, ...] = ()
    """`host:port` of the operator's own services that `http_request` may reach though they are private."""


class SkillSettings(_Section):
    """Where skills are found beside the bundled ones and `skills/` in the data directory."""

    paths: tuple[str, ...] = ()
    prompt_tokens: int = Field(default=2_000, ge=0)


class MemorySettings(_Section):
    """Long-term memory in the prompt."""

    recall: int = Field(default=5, ge=0)
    """Records put into the prompt at most."""
    recall_tokens: int = Field(default=800, ge=0)


class ContextSettings(_Section):
    """The model's window."""

    max_tokens: int = Field(default=128_000, ge=512)


class GenericWebhookSettings(_Section):
    """`POST /webhooks/in`, signed as Standard Webhooks."""

    secret: SecretStr | None = None
    """Secrets (`whsec_…`), separated by spaces; without one the route does not exist."""
    user: str = ""
    """The user whom the messages belong to; required."""
    text_field: str = "text"
    thread_field: str = "session"
    sender_field: str = "sender"
    reply_hosts: tuple[str, ...] = ()
    """Hosts to which `reply_url` may point; empty = none."""


class ChannelSettings(_Section):
    """Platforms."""

    generic: GenericWebhookSettings = GenericWebhookSettings()


class StorageSettings(_Section):
    """The database."""

    sync: Literal["normal", "full"] = "normal"
    """`full` survives a power cut at every commit; `normal` a crash of the process or the system's kill."""
    session_ttl: dict[str, float] = Field(default_factory=dict)
    """Seconds of idleness after which a channel's sessions are deleted; none by default."""
    loaded_sessions: int = Field(default=512, ge=1)
    """Sessions kept in memory."""


class DeliverySettings(_Section):
    """Answers to push channels."""

    give_up_after: float = 24 * 3600.0
    """Seconds after which an answer that cannot be delivered goes into the dead-letter list."""
    timeout: float = 15.0
    """Seconds one try may take."""
    retry_base: float = 1.0
    """Seconds before the second try; doubled each time, with jitter."""
    retry_max: float = 300.0


class LogSettings(_Section):
    """Where and how much is logged."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    file: str | None = None


class Settings(_Section):
    """Everything that can be set."""

    gateway: GatewaySettings = GatewaySettings()
    web: WebSettings = WebSettings()
    model: ModelSettings = ModelSettings()
    agent: AgentConfig = AgentConfig()
    limits: LimitSettings = LimitSettings()
    approval: ApprovalSettings = ApprovalSettings()
    tools: ToolSettings = ToolSettings()
    skills: SkillSettings = SkillSettings()
    memory: MemorySettings = MemorySettings()
    context: ContextSettings = ContextSettings()
    channels: ChannelSettings = ChannelSettings()
    storage: StorageSettings = StorageSettings()
    delivery: DeliverySettings = DeliverySettings()
    log: LogSettings = LogSettings()


FLAT_NAMES: Final[Mapping[str, str]] = {
    "OPENAI_API_KEY": "model.api_key",
    "OPENAI_API_BASE": "model.base_url",
    "OPENAI_BASE_URL": "model.base_url",
    "OPENAI_API_MODEL": "model.name",
    "OPENAI_MODEL": "model.name",
    "MAX_CONTEXT_TOKENS": "context.max_tokens",
    "MINICLAW_TOKEN": "gateway.token",
    "GENERIC_WEBHOOK_SECRET": "channels.generic.secret",
}
"""Environment variables of their own name; of two for one setting the later in this table wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """The settings, where they belong, and where each value that is no default came from."""

    settings: Settings
    data_dir: Path
    origins: Mapping[str, str] = field(default_factory=dict)


def find_data_dir(argument: str | None, env: Mapping[str, str]) -> Path:
    """The data directory: argument, `MINICLAW_HOME`, `~/.miniclaw`, or `./.miniclaw` where home is read-only."""
    if chosen := argument or env.get("MINICLAW_HOME"):
        return Path(chosen).expanduser().absolute()
    home = Path(env.get("HOME") or Path.home())
    if os.access(home, os.W_OK):
        return home / ".miniclaw"
    return Path.cwd() / ".miniclaw"


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
        ConfigError: a file cannot be read, a key is unknown, or a value does not fit.
    """
    env = os.environ if env is None else env
    directory = find_data_dir(data_dir, env)
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    sources: list[tuple[str, Mapping[str, Any]]] = [_read_toml(config_file, directory)]
    if project := env.get("MINICLAW_PROJECT"):
        sources.append(_read_dotenv(Path(project) / ".env"))
    sources.append(_read_dotenv(directory / ".env"))
    sources.append(("environment", _from_environment(env, "environment")))
    sources.append(("argument", arguments or {}))
    for origin, values in sources:
        for name, value in values.items():
            _put(merged, name, value)
            origins[name] = origin
    return LoadedSettings(settings=_validate(merged, origins), data_dir=directory, origins=origins)


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


Clock = Callable[[], float]
"""Seconds since the epoch; injected so that tests need no patching."""
