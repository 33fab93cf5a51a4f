"""Doctor's look at webhooks: which platforms have what they need, and whether they can be reached from outside."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from miniclaw.cli.doctor_command import Check
from miniclaw.errors import ConfigError

if TYPE_CHECKING:
    from miniclaw.channel_settings import ChannelSettings

__all__ = ["look"]

NEEDED: Final = {
    "slack": "SLACK_SIGNING_SECRET",
    "feishu": "FEISHU_ENCRYPT_KEY or FEISHU_VERIFICATION_TOKEN",
    "wecom": "WECOM_TOKEN and WECOM_ENCODING_AES_KEY",
    "dingtalk": "DINGTALK_APP_SECRET",
    "generic": "GENERIC_WEBHOOK_SECRET",
}
"""Without these the platform's route does not exist."""
SECONDS: Final = 10.0


def look(settings: ChannelSettings, public_url: str | None) -> Iterator[Check]:
    """A check for each account of a platform, with `public_url` its own challenge to it, and for what is lacking."""
    from miniclaw.channel.base import none_held
    from miniclaw.channel.platforms import configured

    try:
        running = [platform.name for platform in configured(settings, clock=time.time, held=none_held)]
    except ConfigError as error:
        yield Check("webhooks", "failed", str(error), "mend that setting")
        return
    for name, needed in NEEDED.items():
        is_there = any(own.startswith(name) for own in running)  # WeCom's bot may be all that is wanted of it
        if not is_there and getattr(settings, name).model_fields_set:
            yield Check(name, "warning", "some of it is set, and there is no route", f"set {needed}")
    for own in running:
        yield Check(own, "ok", "the route exists")
        if public_url:
            platform, _, account = own.partition("/")
            section = getattr(settings, platform.removesuffix("-bot"))
            yield _try(own, section.accounts[account] if account else section, public_url.rstrip("/"))
    if not running:
        yield Check("webhooks", "ok", "none: no platform has its secret")


def _try(name: str, section: Any, url: str) -> Check:
    """Send the platform's challenge to the public address, as the platform does when an address is entered."""
    import httpx

    mend = "the address must lead to this gateway's web port, with path and body unchanged"
    word, platform = secrets.token_hex(8), name.partition("/")[0]
    challenge = _CHALLENGES.get(platform)
    query, headers, body = challenge(section, word) if challenge else ("", {}, b"{}")
    path = {"slack": f"{name}/events", "generic": "in"}.get(platform, name)
    url = f"{url}/webhooks/{path}"
    try:
        with httpx.Client(timeout=SECONDS, trust_env=False) as client:
            method = "GET" if body is None else "POST"
            answer = client.request(method, f"{url}{query}", headers=headers, content=body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Check(name, "failed", f"{url} cannot be reached: {type(error).__name__}", mend)
    # Without a challenge: that an unsigned request is refused shows that the gateway is there.
    if not (word in answer.text if challenge else answer.status_code == 401):
        return Check(name, "failed", f"{url} answered {answer.status_code}", mend)
    return Check(name, "ok", f"{url} answers its challenge")


def _slack(section: Any, word: str) -> tuple[str, dict[str, str], bytes | None]:
    from miniclaw.channel.platforms.slack import sign

    body, moment = json.dumps({"type": "url_verification", "challenge": word}).encode(), str(int(time.time()))
    signature = sign(section.signing_secret.get_secret_value(), moment, body)
    return "", {"X-Slack-Request-Timestamp": moment, "X-Slack-Signature": signature}, body


def _feishu(section: Any, word: str) -> tuple[str, dict[str, str], bytes | None]:
    from miniclaw.channel.platforms.feishu_crypto import encrypt

    token = section.verification_token.get_secret_value() if section.verification_token else ""
    body = json.dumps({"type": "url_verification", "token": token, "challenge": word})
    if section.encrypt_key:
        body = json.dumps({"encrypt": encrypt(section.encrypt_key.get_secret_value(), body)})
    return "", {"Content-Type": "application/json"}, body.encode()


def _wecom(section: Any, word: str, *, bot: bool = False) -> tuple[str, dict[str, str], bytes | None]:
    from miniclaw.channel.platforms.wecom_crypto import WeComCrypto

    token = section.bot_token if bot and section.bot_token else section.token
    key = section.bot_encoding_aes_key if bot and section.bot_encoding_aes_key else section.encoding_aes_key
    receive_id = "" if bot else section.corp_id
    crypto = WeComCrypto(token.get_secret_value(), key.get_secret_value(), receive_id)
    moment, nonce, echo = str(int(time.time())), secrets.token_hex(4), crypto.encrypt(word)
    signature = crypto.sign(moment, nonce, echo)
    query = {"msg_signature": signature, "timestamp": moment, "nonce": nonce, "echostr": echo}
    return f"?{urlencode(query)}", {}, None


_CHALLENGES: Final[Mapping[str, Callable[[Any, str], tuple[str, dict[str, str], bytes | None]]]] = {
    "slack": _slack,
    "feishu": _feishu,
    "wecom": _wecom,
    "wecom-bot": partial(_wecom, bot=True),
}
"""Query, headers and body of each; the answer holds the word."""
