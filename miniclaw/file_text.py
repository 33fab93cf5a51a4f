"""The text of documents, read in a process of its own that has limits: `python -m miniclaw.file_text FILE`.

Formats: PDF through pypdf; the XML parts of ECMA-376 documents (docx, xlsx, pptx). Standard library else.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final
from xml.parsers import expat

from miniclaw.file_kinds import MAX_CHARS, PDF, kind_of

__all__ = ["main"]

logger = logging.getLogger(__name__)

_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
MAX_UNPACKED: Final = 100_000_000
"""Bytes that the parts of a document may unpack to."""
MAX_MEMORY: Final = 1_000_000_000
"""Bytes that the reading process may take."""
MAX_COLUMNS: Final = 256


class _Refused(Exception):
    """The file is not taken; a code of the protocol and why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Enough(Exception):
    """As much was written as is kept."""


class _Out:
    """Where the text goes: out at once, so that what was read before a time-out is kept."""

    def __init__(self) -> None:
        self.left = MAX_CHARS

    def __call__(self, text: str) -> None:
        text = text.replace("\0", "\ufffd")[: self.left]
        self.left -= len(text)
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        if not self.left:
            raise _Enough


Started = Callable[[str, dict[str, str]], None]


class _Office:
    """The parts of an office document; together they unpack to so many bytes and no more."""

    def __init__(self, path: str) -> None:
        self._archive = zipfile.ZipFile(path)
        self.names = set(self._archive.namelist())
        self._left = MAX_UNPACKED

    def part(
        self, name: str, *, start: Started, end: Callable[[str], None], text: Callable[[str], None]
    ) -> None:
        """Read one XML part; names come without their namespaces. A part may declare no entities."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True

        def doctype(*_: object) -> None:
            raise _Refused("unsupported", "The document declares XML entities, which no office program does.")

        parser.StartDoctypeDeclHandler = doctype
        parser.StartElementHandler = lambda tag, more: start(tag.rpartition(" ")[2], more)
        parser.EndElementHandler = lambda tag: end(tag.rpartition(" ")[2])
        parser.CharacterDataHandler = text
        with self._archive.open(name) as source:
            while piece := source.read(65_536):
                self._left -= len(piece)
                if self._left < 0:
                    raise _Refused("too_large", f"The document unpacks to more than {MAX_UNPACKED:,} bytes.")
                parser.Parse(piece, False)
        parser.Parse(b"", True)

    def numbered(self, pattern: str) -> list[str]:
        """The parts whose names fit, by the number in them."""
        found = [(int(match[1]), name) for name in self.names if (match := re.fullmatch(pattern, name))]
        return [name for _, name in sorted(found)]


def _paragraphs(office: _Office, name: str, out: _Out) -> None:
    """A line a paragraph, a line a table row; what is shown only to older programs is passed over."""
    depth = dict.fromkeys(("t", "r", "tc", "Fallback"), 0)

    def start(tag: str, _: dict[str, str]) -> None:
        if tag in depth:
            depth[tag] += 1
        elif tag == "br" or (tag == "tab" and depth["r"]):
            out("\t" if tag == "tab" else "\n")

    def end(tag: str) -> None:
        if tag in depth:
            depth[tag] -= 1
        if tag in ("tc", "tr", "p"):
            out({"tc": "\t", "tr": "\n"}.get(tag, " " if depth["tc"] else "\n"))

    office.part(
        name, start=start, end=end, text=lambda s: out(s) if depth["t"] and not depth["Fallback"] else None
    )


def _strings(office: _Office) -> list[str]:
    """The shared strings of a workbook, without the reading aids of East Asian ones."""
    found: list[str] = []
    inside = dict.fromkeys(("t", "rPh"), False)

    def start(tag: str, _: dict[str, str]) -> None:
        if tag == "si":
            found.append("")
        elif tag in inside:
            inside[tag] = True

    def end(tag: str) -> None:
        if tag in inside:
            inside[tag] = False

    def text(piece: str) -> None:
        if inside["t"] and not inside["rPh"]:
            found[-1] += piece

    if "xl/sharedStrings.xml" in office.names:
        office.part("xl/sharedStrings.xml", start=start, end=end, text=text)
    return found


def _sheets(office: _Office) -> list[tuple[str, str]]:
    """Title and part of each sheet, in the workbook's order."""
    titles: list[tuple[str, str]] = []
    targets: dict[str, str] = {}

    def start(tag: str, more: dict[str, str]) -> None:
        if tag == "sheet":
            ids = [value for key, value in more.items() if key.endswith(" id")]
            titles.append((more.get("name", ""), ids[0] if ids else ""))
        elif tag == "Relationship":
            target = more.get("Target", "")
            targets[more.get("Id", "")] = target[1:] if target.startswith("/") else f"xl/{target}"

    for name in ("xl/workbook.xml", "xl/_rels/workbook.xml.rels"):
        if name in office.names:
            office.part(name, start=start, end=lambda _: None, text=lambda _: None)
    return [(title, targets[key]) for title, key in titles if targets.get(key) in office.names]


def _cells(office: _Office, name: str, strings: list[str], out: _Out) -> None:
    """A line a row, tabs between cells; values as stored, so a date is its serial number."""
    row: list[str] = []
    value: list[str] = []
    kind, inside = "", False

    def start(tag: str, more: dict[str, str]) -> None:
        nonlocal kind, inside
        if tag == "row":
            row.clear()
        elif tag == "c":
            kind = more.get("t", "")
            column = 0
            for letter in re.sub("[^A-Z]", "", more.get("r", ""))[:3]:
                column = column * 26 + ord(letter) - 64
            row.extend([""] * (min(column - 1, MAX_COLUMNS) - len(row)))
            value.clear()
        inside = tag in ("v", "t")

    def end(tag: str) -> None:
        nonlocal inside
        inside = False
        if tag == "c":
            found = "".join(value)
            if kind == "s":
                found = strings[int(found)] if found.isdigit() and int(found) < len(strings) else ""
            row.append(found)
        elif tag == "row":
            out("\t".join(row) + "\n")

    office.part(name, start=start, end=end, text=lambda piece: value.append(piece) if inside else None)


def _read_office(path: str, out: _Out, tell: Callable[[str], None]) -> None:
    try:
        office = _Office(path)
        if "word/document.xml" in office.names:
            tell(_OFFICE + "wordprocessingml.document")
            _paragraphs(office, "word/document.xml", out)
        elif "ppt/presentation.xml" in office.names:
            tell(_OFFICE + "presentationml.presentation")
            for number, name in enumerate(office.numbered(r"ppt/slides/slide(\d{1,6})\.xml"), 1):
                out(f"[slide {number}]\n")
                _paragraphs(office, name, out)
        elif "xl/workbook.xml" in office.names:
            tell(_OFFICE + "spreadsheetml.sheet")
            strings = _strings(office)
            for title, name in _sheets(office):
                out(f"[sheet {title}]\n")
                _cells(office, name, strings, out)
        else:
            raise _Refused("unsupported", "This archive is no document: only docx, xlsx and pptx are taken.")
    except NotImplementedError as error:  # before RuntimeError, of which it is one
        raise _Refused(
            "unsupported", "This document is packed in a way that office programs do not use."
        ) from error
    except (
        zipfile.BadZipFile,
        expat.ExpatError,
        EOFError,
        OSError,
        RuntimeError,
        ValueError,
        IndexError,
    ) as error:
        raise _Refused("unsupported", "This document is damaged or encrypted.") from error


def _read_pdf(path: str, out: _Out, tell: Callable[[str], None]) -> str:
    """What keeps its text from being read; empty if nothing does."""
    from pypdf import PdfReader

    tell(PDF)
    try:
        has_text = False
        for number, page in enumerate(PdfReader(io.BytesIO(Path(path).read_bytes())).pages, 1):
            text = page.extract_text()
            has_text = has_text or bool(text.strip())
            out(f"[page {number}]\n{text}\n\n")
        return "" if has_text else "it holds no text, perhaps only pictures of pages"
    except _Enough:
        raise
    except Exception as error:  # boundary: a PDF can be broken in more ways than pypdf has errors for
        logger.exception("a PDF cannot be read")
        return f"its text cannot be read ({type(error).__name__})"


def main(path: str) -> None:
    """Write type, text and verdict, divided by NUL; the verdict is `{code, note}` in JSON."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    logging.disable()
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    out, code, note, told = _Out(), "", "", False

    def tell(kind: str) -> None:
        nonlocal told
        told = True
        sys.stdout.buffer.write(kind.encode() + b"\0")

    with open(path, "rb") as file:
        kind = kind_of(file.read(1024))
    try:
        if kind == PDF:
            note = _read_pdf(path, out, tell)
        else:
            _read_office(path, out, tell)
    except _Enough:
        note = f"only its first {MAX_CHARS:,} characters are kept"
    except _Refused as error:
        code, note = error.code, str(error)
        if not told:
            tell("")
    sys.stdout.buffer.write(b"\0" + json.dumps({"code": code, "note": note}).encode())


if __name__ == "__main__":
    main(sys.argv[1])
