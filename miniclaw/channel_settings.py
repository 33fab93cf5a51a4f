"""What can be set of each platform; with a secret its webhook exists, without one it does not."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

__all__ = [
    "ChannelSettings",
    "DingTalkAccount",
    "DingTalkSettings",
    "FeishuAccount",
    "FeishuSettings",
    "GenericWebhookSettings",
    "PlatformAccount",
    "Section",
    "SlackAccount",
    "SlackSettings",
    "WeComAccount",
    "WeComSettings",
]


class Section(BaseModel):
    """A section of `miniclaw.toml`: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*")
    @classmethod
    def _no_blank_secret(cls, value: Any) -> Any:
        """A secret of blanks alone is none: it must never be taken for a key."""
        return None if isinstance(value, SecretStr) and not value.get_secret_value().strip() else value


class PlatformAccount(Section):
    """What all platforms where people speak have in common."""

    strangers: Literal["serve", "pair", "refuse"] = "serve"
    """Somebody new is a user of their own, gets a pairing code for the operator, or is not answered."""
    require_mention: bool = True
    """In groups only what names the bot is taken, and what goes on in a thread where it was named."""
    stream: bool = True
    """Show answers while they grow, where the platform can."""
    file_bytes: int = Field(default=20 * 1024 * 1024, ge=0)
    """Of the largest file that is fetched for the agent."""


class SlackAccount(PlatformAccount):
    """One Slack app in one workspace."""

    signing_secret: SecretStr | None = None
    bot_token: SecretStr | None = None
    bot_user_id: str = ""
    """`U…` of the bot; else asked of `auth.test`."""
    bot_id: str = ""
    """`B…` of the bot; else asked of `auth.test`."""
    api_base: str = "https://slack.com/api"
    file_hosts: tuple[str, ...] = ("files.slack.com",)
    """Hosts that get the token when a file is fetched."""


class SlackSettings(SlackAccount):
    """Slack; further workspaces as `[channels.slack.accounts.<name>]`."""

    accounts: dict[str, SlackAccount] = Field(default_factory=dict)


class FeishuAccount(PlatformAccount):
    """One app of Feishu or Lark."""

    app_id: str = ""
    app_secret: SecretStr | None = None
    verification_token: SecretStr | None = None
    encrypt_key: SecretStr | None = None
    bot_open_id: str = ""
    """`ou_…` of the bot; else asked of `bot/v3/info`."""
    api_base: str = "https://open.feishu.cn"
    """`https://open.larksuite.com` for Lark."""
    window_seconds: float = Field(default=300.0, ge=0)
    """How far a signature's time may be from ours; 0 = any."""
    max_age: float = Field(default=6.5 * 3600, gt=0)
    """Seconds after which a message that comes late, as a retry, is acknowledged and not run."""


class FeishuSettings(FeishuAccount):
    """Feishu; further apps as `[channels.feishu.accounts.<name>]`."""

    accounts: dict[str, FeishuAccount] = Field(default_factory=dict)


class WeComAccount(PlatformAccount):
    """One app of WeCom, and its AI bot."""

    corp_id: str = ""
    agent_id: int = 0
    secret: SecretStr | None = None
    token: SecretStr | None = None
    encoding_aes_key: SecretStr | None = None
    api_base: str = "https://qyapi.weixin.qq.com"
    markdown: bool = True
    """Send answers of the app as WeCom's Markdown; without it as text, which people who use WeChat see too."""
    bot_name: str = ""
    bot_token: SecretStr | None = None
    """The AI bot's; the app's where it is not set."""
    bot_encoding_aes_key: SecretStr | None = None
    file_hosts: tuple[str, ...] = ("ww-aibot-img-1258476243.cos.ap-guangzhou.myqcloud.com",)
    """Hosts from which files that were sent to the AI bot are fetched."""


class WeComSettings(WeComAccount):
    """WeCom; further apps as `[channels.wecom.accounts.<name>]`."""

    accounts: dict[str, WeComAccount] = Field(default_factory=dict)


class DingTalkAccount(PlatformAccount):
    """One robot of DingTalk in HTTP mode."""

    app_secret: SecretStr | None = None
    app_key: str = ""
    """For files; a message's `robotCode` where it is not set, which is the same for most robots."""
    api_base: str = "https://api.dingtalk.com"
    reply_hosts: tuple[str, ...] = ("oapi.dingtalk.com", "api.dingtalk.com")
    """Hosts to which a message's `sessionWebhook` may point."""
    file_hosts: tuple[str, ...] = (
        "wukong-file-im-zjk.oss-cn-zhangjiakou.aliyuncs.com",
        "down.dingtalk.com",
        "download.dingtalk.com",
    )
    """Hosts from which files are fetched; DingTalk names one for each file."""


class DingTalkSettings(DingTalkAccount):
    """DingTalk; further robots as `[channels.dingtalk.accounts.<name>]`."""

    accounts: dict[str, DingTalkAccount] = Field(default_factory=dict)


class GenericWebhookSettings(Section):
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
    bearer: SecretStr | None = None
    """A token that senders without signatures show as `Authorization: Bearer`."""
    hub_secret: SecretStr | None = None
    """The secret of senders that sign as GitHub does, `X-Hub-Signature-256`."""


class ChannelSettings(Section):
    """Platforms."""

    slack: SlackSettings = SlackSettings()
    feishu: FeishuSettings = FeishuSettings()
    wecom: WeComSettings = WeComSettings()
    dingtalk: DingTalkSettings = DingTalkSettings()
    generic: GenericWebhookSettings = GenericWebhookSettings()
