"""Doctor's look at webhooks: which platforms have what they need, and whether they can be reached from outside."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
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
    """A check for each platform that something was set of, and with `public_url` its own challenge to it."""
    from miniclaw.channel.platforms import configured

    try:
        running = {platform.name.partition("/")[0] for platform in configured(settings, clock=time.time)}
    except ConfigError as error:
        yield Check("webhooks", "failed", str(error), "mend that setting")
        return
    for name, needed in NEEDED.items():
        section = getattr(settings, name)
        if name not in running and section.model_fields_set:
            yield Check(name, "warning", "some of it is set, and there is no route", f"set {needed}")
        elif name in running:
            yield Check(name, "ok", "the route exists")
            if public_url:
                yield _try(name, section, public_url.rstrip("/"))
    if not running:
        yield Check("webhooks", "ok", "none: no platform has its secret")


def _try(name: str, section: Any, url: str) -> Check:
    """Send the platform's challenge to the public address, as the platform does when an address is entered."""
    import httpx

    mend = "the address must lead to this gateway's web port, with path and body unchanged"
    word = secrets.token_hex(8)
    request = {"slack": _slack, "feishu": _feishu, "wecom": _wecom}.get(name, _unsigned)(section, word)
    path, headers, body = request
    try:
        with httpx.Client(timeout=SECONDS, trust_env=False) as client:
            answer = client.request(
                "GET" if body is None else "POST", f"{url}{path}", headers=headers, content=body
            )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Check(name, "failed", f"{url} cannot be reached: {type(error).__name__}", mend)
    reached = answer.status_code == 401 if name not in ("slack", "feishu", "wecom") else word in answer.text
    if not reached:
        return Check(name, "failed", f"{url}{path.partition('?')[0]} answered {answer.status_code}", mend)
    return Check(name, "ok", f"{url}{path.partition('?')[0]} answers its challenge")


def _slack(section: Any, word: str) -> tuple[str, dict[str, str], bytes | None]:
    from miniclaw.channel.platforms.slack import sign

    body, moment = json.dumps({"type": "url_verification", "challenge": word}).encode(), str(int(time.time()))
    signature = sign(section.signing_secret.get_secret_value(), moment, body)
    return (
        "/webhooks/slack/events",
        {"X-Slack-Request-Timestamp": moment, "X-Slack-Signature": signature},
        body,
    )


def _feishu(section: Any, word: str) -> tuple[str, dict[str, str], bytes | None]:
    from miniclaw.channel.platforms.feishu_crypto import encrypt

    token = section.verification_token.get_secret_value() if section.verification_token else ""
    body = json.dumps({"type": "url_verification", "token": token, "challenge": word})
    if section.encrypt_key:
        body = json.dumps({"encrypt": encrypt(section.encrypt_key.get_secret_value(), body)})
    return "/webhooks/feishu", {"Content-Type": "application/json"}, body.encode()


def _wecom(section: Any, word: str) -> tuple[str, dict[str, str], bytes | None]:
    from miniclaw.channel.platforms.wecom_crypto import WeComCrypto

    token, key = section.token.get_secret_value(), section.encoding_aes_key.get_secret_value()
    crypto, moment, nonce = (
        WeComCrypto(token, key, section.corp_id),
        str(int(time.time())),
        secrets.token_hex(4),
    )
    echo = crypto.encrypt(word)
    query = {
        "msg_signature": crypto.sign(moment, nonce, echo),
        "timestamp": moment,
        "nonce": nonce,
        "echostr": echo,
    }
    return f"/webhooks/wecom?{urlencode(query)}", {}, None


def _unsigned(section: Any, word: str) -> tuple[str, dict[str, str], bytes | None]:
    """These have no challenge; that an unsigned request is refused shows that the gateway is there."""
    path = (
        "/webhooks/in"
        if hasattr(section, "reply_hosts") and hasattr(section, "text_field")
        else "/webhooks/dingtalk"
    )
    return path, {}, b"{}"
