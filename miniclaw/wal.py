"""Reads SQLite's write-ahead log by itself: SQLite takes what follows damage in it for what a crash left.

https://www.sqlite.org/fileformat.html#the_write_ahead_log
"""

from __future__ import annotations

import shutil
import struct
import sys
from array import array
from pathlib import Path
from typing import Final, Literal

__all__ = ["LostPages", "apply", "behind_damage"]

Order = Literal["little", "big"]
LostPages = tuple[dict[int, bytes], int]
"""Pages by their number, from 1, and how many the database has with them; 0 where that is not known."""

_HEAD: Final = 32
_FRAME: Final = 24
_MAGIC: Final[dict[bytes, Order]] = {b"\x37\x7f\x06\x82": "little", b"\x37\x7f\x06\x83": "big"}


def behind_damage(path: Path) -> LostPages | None:
    """What a database's log holds, when SQLite would throw a part of it away; else `None`.

    That is so when its head is damaged, or a whole commit stands behind a damaged frame, which a write that a
    crash interrupted does not leave. A frame's sum goes on from that of the frame before, so each can be
    checked by itself; the page of a damaged one is taken as it is, unless a sound one follows.
    """
    log = Path(f"{path}-wal")
    raw = log.read_bytes() if log.exists() else b""
    order, page, salt = _head(raw, path)
    before, is_bad = raw[24:_HEAD], order is None
    is_damaged, size = is_bad, 0
    pages: dict[int, bytes] = {}
    fresh: dict[int, bytes] = {}
    if not page or len(raw) < _HEAD + _FRAME + page:
        return None
    for start in range(_HEAD, len(raw) - _FRAME - page + 1, _FRAME + page):
        head, body = raw[start : start + _FRAME], raw[start + _FRAME : start + _FRAME + page]
        is_sound = head[8:16] == salt and _sum(head[:8] + body, before, order or sys.byteorder) == head[16:]
        is_bad = is_bad or not is_sound
        before = head[16:]
        number, total = struct.unpack(">II", head[:8])
        if head[8:16] == salt:
            fresh[number] = body
        if is_sound and total:
            is_damaged, size = is_damaged or is_bad, total
            pages |= fresh
            fresh = {}
    return (pages, size) if is_damaged else None


def apply(lost: LostPages, path: Path, fresh: Path) -> None:
    """Write a copy of a database with these pages in it."""
    shutil.copyfile(path, fresh)
    pages, size = lost
    with fresh.open("r+b") as file:
        for number, body in pages.items():
            if 0 < number <= size:
                file.seek((number - 1) * len(body))
                file.write(body)
        if pages:
            file.truncate(size * len(next(iter(pages.values()))))


def _head(raw: bytes, path: Path) -> tuple[Order | None, int, bytes]:
    """Byte order of the sums, bytes of a page and salt; without an order the head is damaged."""
    order = _MAGIC.get(raw[:4])
    if order is not None and _sum(raw[:24], bytes(8), order) == raw[24:_HEAD]:
        return order, int.from_bytes(raw[8:12], "big"), raw[16:24]
    with path.open("rb") as file:
        page = int.from_bytes(file.read(18)[16:], "big")
    return None, 65_536 if page == 1 else page, raw[_HEAD + 8 : _HEAD + 16]


def _sum(data: bytes, before: bytes, order: str) -> bytes:
    words = array("I", data)
    if order != sys.byteorder:
        words.byteswap()
    one, two = struct.unpack(">II", before)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return struct.pack(">II", one, two)
