"""What people write in Feishu as Markdown for the agent, and the agent's Markdown as Feishu's cards take it.

Forms: https://open.feishu.cn/document/server-docs/im-v1/message-content-description/message_content,
https://open.feishu.cn/document/feishu-cards/card-json-v2-components/content-components/rich-text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from markdown_it import MarkdownIt

from miniclaw.channel.bounded import bounded, parsed
from miniclaw.gateway.protocol import FileRef

__all__ = ["ANSWER", "button", "card", "read_content", "size", "to_card", "without_pings"]

TABLES: Final = 3
"""Of one card; Feishu refuses a card with more than its limit, which differs between its documents and clients."""
KINDS: Final[Mapping[str, Literal["audio", "video", "file"]]] = {
    "file": "file",
    "audio": "audio",
    "media": "video",
}
_STYLES: Final = (("bold", "**"), ("italic", "*"), ("lineThrough", "~~"))

_PLACEHOLDER = re.compile(r"(@_user_[0-9]+|@_all)( ?)")
READ: Final = frozenset({"text", "post", "image", "file", "audio", "media"})
"""Types of messages whose content is read; of others the model sees the type."""
_BACKTICKS = re.compile(r"`+")


def read_content(kind: str, content: str, mentions: Mapping[str, str]) -> tuple[str, tuple[FileRef, ...]]:
    """The text of a message, and its files.

    Args:
        kind: Feishu's type of the message.
        content: the JSON that Feishu sends as a string.
        mentions: what stands for each placeholder such as `@_user_1`; nothing for the bot itself.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it is not of this form.
    """
    if kind not in READ:
        return f"[{kind[:40]}]", ()  # some are no JSON, such as a forwarded conversation
    raw = json.loads(content)
    match kind:
        case "text":
            return _named(str(raw["text"]), mentions), ()
        case "post":
            return _post(raw, mentions)
        case "image":
            return "", (FileRef(kind="image", id=str(raw["image_key"])),)
        case "file" | "audio" | "media":
            name = str(raw.get("file_name") or "")
            return "", (FileRef(kind=KINDS[kind], id=str(raw["file_key"]), name=name),)
    raise ValueError(kind)


def _named(text: str, mentions: Mapping[str, str]) -> str:
    """Names in place of placeholders."""

    def name(match: re.Match[str]) -> str:
        found = mentions.get(match[1], "@all" if match[1] == "@_all" else match[1])
        return found + match[2] if found else ""

    return _PLACEHOLDER.sub(name, text).strip()


def _post(raw: dict[str, Any], mentions: Mapping[str, str]) -> tuple[str, tuple[FileRef, ...]]:
    if "content" not in raw:
        raw = next(iter(raw.values()), {})  # by language
    files: list[FileRef] = []
    blocks = [f"# {raw['title']}"] if raw.get("title") else []
    blocks += [
        "".join(_element(one, mentions, files) for one in line).strip() for line in raw.get("content") or ()
    ]
    return "\n\n".join(filter(None, blocks)), tuple(files)


def _element(element: dict[str, Any], mentions: Mapping[str, str], files: list[FileRef]) -> str:
    text = str(element.get("text") or "")
    match element["tag"]:
        case "a":
            return _styled(f"[{text}]({element['href']})", element)
        case "at":
            key = str(element.get("user_id"))
            name = "all" if key in ("@_all", "all") else element.get("user_name") or key
            return mentions.get(key, f"@{name}")
        case "img":
            files.append(FileRef(kind="image", id=str(element["image_key"])))
            return f"![image]({element['image_key']})"
        case "media":
            files.append(FileRef(kind="video", id=str(element["file_key"])))
            return ""
        case "code_block":
            return _fenced(text.rstrip("\n"), str(element.get("language") or "").lower())
        case "emotion":
            return f":{element['emoji_type']}:"
        case "hr":
            return "---"
    return _styled(text, element)


def _styled(text: str, element: dict[str, Any]) -> str:
    bare = text.strip()
    if not bare:
        return text
    start = text.index(bare)
    marked = bare
    for style, mark in _STYLES:
        if style in (element.get("style") or ()):
            marked = f"{mark}{marked}{mark}"
    return text[:start] + marked + text[start + len(bare) :]


def _fenced(text: str, info: str) -> str:
    marks = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return f"\n{marks}{info}\n{text}\n{marks}\n"


# --- to Feishu ----------------------------------------------------------------------------------------------

ANSWER: Final = "answer"
"""The id of the element that holds the text of a card."""

_MARKDOWN = bounded(MarkdownIt("commonmark").enable("table").disable("inline"))
_CODE_SPAN = re.compile(r"(?<![`\\])(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_TAG = re.compile(r"<(?!(?:https?://|mailto:)[^\s<>]*>)(?=[A-Za-z/!?])")
_PING = re.compile(r"<(?=/?\s*(?:at|person)\b)", re.IGNORECASE)
_IMAGE = re.compile(r"!+(?=\[)")
_BREAK: Final = "\u200b"


def size(text: str) -> int:
    """The bytes that a text takes in a request at most, where it is JSON inside JSON."""
    quoted = json.dumps(json.dumps(text, ensure_ascii=False), ensure_ascii=False)
    return len(quoted.encode("utf-8", "replace")) + 4 * text.count("<")


def without_pings(text: str) -> str:
    """Text of a model in which nothing calls people: `<at …>` and `<person …>` are broken up."""
    return _PING.sub(f"<{_BREAK}", text)


def to_card(text: str) -> str:
    """Markdown as a card shows it.

    Tags are shown as they are written, and call nobody. Images become links, since a card with an image that
    was not uploaded to Feishu is refused; so is one with too many tables, of which the later become code.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # as the parser counts lines
    lines = text.split("\n")
    out: list[str] = []
    done = tables = 0
    for token in parsed(_MARKDOWN, text) or ():
        if token.map is None or token.type not in ("fence", "code_block", "table_open"):
            continue
        start, end = token.map
        if token.type == "table_open":
            tables += 1
            if tables <= TABLES:
                continue
        out += _prose(lines[done:start])
        block = lines[start:end]
        out += ["```", *block, "```", ""] if token.type == "table_open" else block
        done = end
    return without_pings("\n".join(out + _prose(lines[done:])))


def _prose(lines: list[str]) -> list[str]:
    """Lines that are no code, but for the code spans in them."""
    if not lines:
        return []
    out, done, text = "", 0, "\n".join(lines)
    for match in _CODE_SPAN.finditer(text):
        out += _shown(text[done : match.start()]) + match[0]
        done = match.end()
    return [out + _shown(text[done:])]


def _shown(text: str) -> str:
    return _TAG.sub("&#60;", _IMAGE.sub("", text))


def card(content: str, *buttons: dict[str, Any], **config: Any) -> dict[str, Any]:
    """A card of such a text, as https://open.feishu.cn/document/feishu-cards/card-json-v2-structure has it."""
    text = {"tag": "markdown", "content": content, "element_id": ANSWER}
    return {
        "schema": "2.0",
        "config": {"update_multi": True, **config},
        "body": {"elements": [text, *buttons]},
    }


def button(label: str, value: dict[str, str], kind: str) -> dict[str, Any]:
    """A button; a click on it brings its value back."""
    return {
        "tag": "button",
        "type": kind,
        "text": {"tag": "plain_text", "content": label},
        "behaviors": [{"type": "callback", "value": value}],
    }
