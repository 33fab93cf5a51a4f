"""Everything that can be set: one frozen model a section of `miniclaw.toml`. What a field does stands under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

__all__ = [
    "Clock",
    "AgentConfig",
    "ApprovalSettings",
    "ChannelSettings",
    "ContextSettings",
    "DeliverySettings",
    "GatewaySettings",
    "GenericWebhookSettings",
    "LimitSettings",
    "LogSettings",
    "MemorySettings",
    "ModelSettings",
    "Settings",
    "SkillSettings",
    "StorageSettings",
    "ToolSettings",
    "WebSettings",
]

Clock = Callable[[], float]
"""Seconds since the epoch; injected so that tests need no patching."""


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
