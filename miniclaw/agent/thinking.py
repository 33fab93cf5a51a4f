"""Takes the thoughts off an answer that carries them in its text, wherever the pieces are cut. No I/O."""

from __future__ import annotations

import re
from typing import Final, Literal

__all__ = ["ThinkSplitter", "split_unopened"]

_TAGS: Final = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
_CHANNEL: Final = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>(analysis|commentary|final)\s?<\|message\|>"
)
"""The head of a message in Harmony, the format of gpt-oss: thoughts, or a text for the user.

Source: https://cookbook.openai.com/articles/openai-harmony
"""
_CHANNELS: Final = tuple(
    f"{start}<|channel|>{channel}<|message|>"
    for start in ("", "<|start|>assistant")
    for channel in ("analysis", "commentary", "final")
)
_UNOPENED: Final = re.compile(r"(.*?)^[ \t]*</think>[ \t]*$\s*", re.DOTALL | re.MULTILINE)
_IN_SENTENCE: Final = re.compile(
    r"</think>(?:[ \t]+\S|[.,;:!?…)\]}`，。；：！？、）」』”’》])|([\"'])</think>\1|[一-鿿]</think>[一-鿿]"
    r"|[ \t]</think>[ \t]*\n[ \t]*\S"
)
"""A tag that a sentence is about, with what is around it."""


class ThinkSplitter:
    """Splits a text that begins with blocks of thoughts; a tag further on is part of the answer."""

    def __init__(self) -> None:
        self._where: Literal["start", "inside", "behind", "text"] = "start"
        self._held = ""
        """What may be a tag, or blanks that may not belong to what is shown."""
        self._blanks: list[str] = []
        """Blanks behind that: they decide nothing, and there may be very many."""
        self._close = ""
        self._has_thought = False
        self._is_shown = False
        """Whether what is inside is for the user."""

    @property
    def is_done(self) -> bool:
        """Whether the rest of the answer is text."""
        return self._where == "text"

    def feed(self, piece: str) -> tuple[str, str]:
        """Take a piece; returns what is text and what is thought of what can be told by now."""
        if self.is_done:
            return piece, ""
        if piece.isspace():
            self._blanks.append(piece)
            return "", ""
        self._held += "".join((*self._blanks, piece))
        self._blanks.clear()
        text = thought = ""
        while self._where == "inside" or self._opens():
            taken = self._take_inside()
            text, thought = (text + taken, thought) if self._is_shown else (text, thought + taken)
            if self._where == "inside":
                break
        return text + (self._take_all() if self.is_done else ""), thought

    def finish(self) -> tuple[str, str]:
        """What was still held back; a block that never ends is all thought."""
        where, self._where = self._where, "text"
        held = self._take_all() + "".join(self._blanks)
        self._blanks.clear()
        if where == "inside" and self._is_shown:
            return held, ""
        return (
            ("", self._strip(held))
            if where == "inside"
            else (held if where == "start" else held.lstrip(), "")
        )

    def _opens(self) -> bool:
        """Go into the block that begins here; what begins none is text."""
        start = self._held.lstrip()
        is_start = self._where == "start"
        tag = next((tag for tag in _TAGS if start.startswith(tag)), "")
        if (head := _CHANNEL.match(start)) is not None:
            self._is_shown, self._close = (
                head[1] != "analysis",
                "<|return|>" if head[1] == "final" else "<|end|>",
            )
            tag = head[0]
        elif tag:
            self._is_shown, self._close = False, _TAGS[tag]
        if tag:
            between = "\n\n" if self._has_thought and tag in _TAGS else ""
            self._where, self._held = "inside", between + start[len(tag) :]
        elif not any(known.startswith(start) for known in (*_CHANNELS, *_TAGS)):
            self._where, self._held = "text", self._held if is_start else start
        return bool(tag)

    def _take_inside(self) -> str:
        inside, closing, behind = self._held.partition(self._close)
        if closing:
            self._where, self._held = "behind", behind
            return self._strip(inside)
        shown = inside[: len(inside) - _overlap(inside, self._close)].rstrip()
        if not shown.strip():
            return ""
        self._held = inside[len(shown) :]
        return self._strip(shown)

    def _strip(self, inside: str) -> str:
        """Thoughts without the blanks around the whole block."""
        if self._is_shown:
            return inside
        shown = inside.rstrip() if self._has_thought else inside.strip()
        self._has_thought = self._has_thought or bool(shown)
        return shown

    def _take_all(self) -> str:
        held, self._held = self._held, ""
        return held


def split_unopened(text: str) -> tuple[str, str]:
    """Text and thoughts of a whole answer that closes a block which the server opened for the model."""
    if "</think>" not in text or "<think>" in text:
        return text, ""
    before, _, behind = text.partition("</think>")
    if (match := _UNOPENED.match(text)) is not None:
        before, behind = match[1], text[match.end() :]
    elif "</think>" in behind or _IN_SENTENCE.search(f"{before[-1:]}</think>{behind[:200]}"):
        return text, ""
    is_code = before.count("```") % 2 or before.rpartition("\n")[2].count("`") % 2
    return (text, "") if is_code else (behind.lstrip(), before.strip())


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of a text may be the beginning of a tag."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
