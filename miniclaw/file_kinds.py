"""What a file is, by what it holds and not by its name. No I/O."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_CHARS", "PDF", "TEXT", "ZIP", "decode_text", "kind_of"]

TEXT: Final = "text/plain"
PDF: Final = "application/pdf"
ZIP: Final = "application/zip"
"""Perhaps an office document; reading it tells which."""
MAX_CHARS: Final = 1_000_000
"""Characters of a document that are kept."""

_CONTROL: Final = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MARKS: Final = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"PK\x03\x04", ZIP))


def kind_of(data: bytes) -> str:
    """The MIME type of an image, PDF or zip archive by its first bytes; empty for everything else."""
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if b"%PDF-" in data[:1024]:
        return PDF
    return next((kind for mark, kind in _MARKS if data.startswith(mark)), "")


def decode_text(data: bytes) -> str | None:
    """A text in UTF-8, in UTF-16 with its mark, or in GB 18030; `None` for what is no text."""
    is_wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    for encoding in ("utf-16",) if is_wide else ("utf-8-sig", "gb18030"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        return None if _CONTROL.search(text) else text
    return None
