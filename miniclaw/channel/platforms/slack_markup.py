"""Slack's markup: what people write as the agent reads it, and what the agent writes without pings."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["decode", "mentions", "without_pings"]

_TOKEN = re.compile(r"<([@#!][^<>]*|[A-Za-z]+:[^<>|\s]*(?:\|[^<>]*)?)>")
_PING = re.compile(r"<(?=!(?:channel|here|everyone|subteam\^)|@[BUW][A-Z0-9]+[|>]|#[CDG][A-Z0-9]+[|>])")
_BREAK: Final = "\u200b"


def mentions(text: str, user_id: str) -> bool:
    """Whether a message names this user."""
    return bool(user_id) and re.search(rf"<@{re.escape(user_id)}(\|[^<>]*)?>", text) is not None


def decode(text: str, bot_user_id: str) -> str:
    """The text as it was typed: links as Markdown, names in place of ids, the bot's own mentions left out.

    The form is that of https://docs.slack.dev/messaging/formatting-message-text: what Slack adds stands
    between `<` and `>`, and only `&`, `<` and `>` are written as entities.
    """
    decoded = _TOKEN.sub(lambda match: _decoded(match[1], bot_user_id), text)
    return decoded.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _decoded(token: str, bot_user_id: str) -> str:
    body, _, label = token.partition("|")
    match body[:1]:
        case "@":
            if body[1:] == bot_user_id:
                return ""
            return f"@{label or body[1:]}"
        case "#":
            return f"#{label or body[1:]}"
        case "!":
            name, _, rest = body[1:].partition("^")
            return (
                label if name in ("date", "subteam") and label else f"@{rest if name == 'subteam' else name}"
            )
    # A mail address or a bare link carries its own text as its label.
    if not label or label == body or body in (f"mailto:{label}", f"http://{label}"):
        return label or body
    return f"[{label}]({body})"


def without_pings(text: str) -> str:
    """Text of a model in which nothing calls people: `<!channel>`, `<@U…>` and the like are broken up."""
    return _PING.sub(f"<{_BREAK}", text)
