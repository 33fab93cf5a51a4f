"""The body of an HTTP answer: read up to a limit, unpacked up to the same limit, and turned into text."""

from __future__ import annotations

import codecs
import re
import zlib
from typing import TYPE_CHECKING, Final

from miniclaw.errors import ToolError
from miniclaw.tools.builtins.html_text import html_to_text

if TYPE_CHECKING:
    import httpx

__all__ = ["MAX_BYTES", "body_text", "read_body"]

MAX_BYTES: Final = 2_000_000
"""Of an answer's body, packed and unpacked; the rest is not read."""

_TEXT_TYPES = re.compile(
    r"text/.+|application/(.+\+)?(json|xml|yaml|toml|sql)|application/(x-)?(javascript|ndjson|sh|yaml)"
    r"|application/(ecmascript|graphql|rtf|x-www-form-urlencoded|xhtml\+xml)|image/svg\+xml|message/.+"
)
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_CHARSETS = re.compile(r"utf|ascii|iso|cp\d|gb|big5|euc|shift|koi8|mac|hz$|johab|tis|ptcp|kz")
"""Codecs of real character sets; Python also has `punycode` and others that take quadratic time."""


async def read_body(response: httpx.Response) -> tuple[bytes, bool]:
    """At most `MAX_BYTES` of the body, unpacked, and whether there was more."""
    packed = bytearray()
    async for piece in response.aiter_raw():
        packed += piece
        if len(packed) > MAX_BYTES:
            break
    cut = len(packed) > MAX_BYTES
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", "") or not packed:
        return bytes(packed[:MAX_BYTES]), cut
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ToolError(
            f"The answer is packed as `{encoding[:32]}`, which was not asked for; it cannot be read."
        )
    try:
        # One byte more than the limit, so that a bomb costs no more than an honest page.
        body = zlib.decompressobj(wbits=47).decompress(bytes(packed), MAX_BYTES + 1)
    except zlib.error as error:
        raise ToolError("The answer is packed in a broken way and cannot be read.") from error
    return body[:MAX_BYTES], cut or len(body) > MAX_BYTES


def body_text(body: bytes, media_type: str, charset: str | None, url: str) -> str | None:
    """The body as text, a web page as readable text; `None` when it is no text."""
    if not body:
        return ""
    if media_type and not _TEXT_TYPES.fullmatch(media_type):
        return None
    if not media_type and b"\0" in body:
        return None
    is_html = media_type in ("text/html", "application/xhtml+xml")
    if charset is None and is_html:
        found = _META_CHARSET.search(body[:4096])
        charset = found[1].decode("ascii") if found else None
    text = body.decode(_codec(charset or "utf-8"), "replace")
    return html_to_text(text, url) if is_html else text


def _codec(charset: str) -> str:
    try:
        codec = codecs.lookup(charset).name
    except (LookupError, ValueError):
        codec = "utf-8"
    if codec in ("utf-8", "ascii") or not _CHARSETS.match(codec):
        return "utf-8-sig"
    return "gb18030" if codec in ("gb2312", "gbk") else codec  # what pages of that name really hold
