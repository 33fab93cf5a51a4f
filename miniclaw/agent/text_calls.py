"""Holds back of an answer what may still become a printed call. No I/O.

Only what names an offered tool is a call; everything else is text, and is shown as such.
"""

from __future__ import annotations

import re
from typing import Final

from miniclaw.agent.arguments import ARGUMENT_KEYS, CALL_KEYS, NAME_KEYS, Offered, PrintedCall
from miniclaw.agent.call_forms import BEFORE_CALL, MARK, MARKS, OPENING
from miniclaw.agent.printed import LONGEST, LOOKED_AT, TOOLS, find_calls

__all__ = ["CallFilter"]


_BEGINNINGS: Final = frozenset(mark[:end] for mark in MARKS for end in range(1, len(mark)))
_LONGEST: Final = max(map(len, MARKS))
_LEAD: Final = re.compile(r"[\s\"'`]*(?:to=)?")
_WORD: Final = re.compile(r"(?:functions?\.)?([^\s\"'<>\[\](){}:.=]+)")
_HEAD: Final = re.compile(r"""\{{1,2}\s*(?:["']([^"']*)(?:(["'])\s*:?\s*(?:["']([^"']*)(["'])?)?)?)?""")
_FENCE_HEADS: Final = ("```json", "```tool_call", "```tool_code", "```python", "```xml")


class CallFilter:
    """Takes the text of an answer piece by piece and lets through what is certainly not a call.

    Only the first characters of what is held back are judged, so the work grows as the text does.
    """

    def __init__(self, offered: Offered) -> None:
        self._offered = offered
        self._blanks: list[str] = []
        """What is before the first word, as long as everything is held back."""
        self._held = ""
        self._more: list[str] = []
        """What follows it, once nothing can change that it is held back."""
        self._size = 0
        self._is_sure = self._is_text = False
        self._is_start = True

    def feed(self, piece: str) -> str:
        """Take a piece; returns what can be shown by now."""
        if self._is_text or not (self._is_start or self._held or OPENING.search(piece)):
            return piece
        if self._is_start and not self._held:
            word = piece.lstrip()
            self._blanks.append(piece[: len(piece) - len(word)])
            piece = word
        shown = ""
        if self._is_sure:
            self._more.append(piece)
        else:
            self._held += piece
            shown = self._judge()
        self._size += len(piece) - len(shown)
        if self._size > LONGEST:
            self._is_text, self._is_start = True, False
            shown += self._take()
        return shown if self._is_start else self._take_blanks() + shown

    def finish(self, before: str = "") -> tuple[str, list[PrintedCall]]:
        """What was held back: the text of it, and the calls; `before` is what was shown."""
        calls, text = find_calls(self._take(), self._offered, is_all=self._is_start, before=before)
        blanks = self._take_blanks()
        return (blanks + text if text or not calls else ""), calls

    def _take(self) -> str:
        held, self._held, self._more = self._held + "".join(self._more), "", []
        return held

    def _take_blanks(self) -> str:
        blanks, self._blanks = "".join(self._blanks), []
        return blanks

    def _judge(self) -> str:
        """Take off what can be shown of what is held."""
        if self._is_start:
            head = self._held[:LOOKED_AT]
            if not head or self._may_be_all(head):
                self._is_sure = len(head) == LOOKED_AT
                return ""
            self._is_start = False
        place = 0
        for mark in MARK.finditer(self._held):
            if self._may_follow(self._held, mark.end()):
                self._is_sure = len(self._held) >= mark.end() + LOOKED_AT
                cut = mark.start()
                break
            place = mark.end()
        else:
            cut = self._beginning_of_mark(place)
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def _may_be_all(self, start: str) -> bool:
        """Whether an answer that begins like this may be one printed call from end to end."""
        if start[0] == "`":
            head, newline, rest = start.partition("\n")
            head, rest = head.rstrip().lower(), rest.lstrip()
            if not newline:
                return any(known.startswith(head) for known in _FENCE_HEADS)
            if head not in {"```", *_FENCE_HEADS}:
                return False
            word = _WORD.match(rest)
            is_code = word is not None and self._is_name(word[1], whole=word.end() < len(rest))
            is_printed = "print(".startswith(rest[:6]) and head.endswith("code")
            return not rest or is_code or is_printed or self._may_be_value(rest) or self._may_be_mark(rest)
        if start.startswith(TOOLS) or TOOLS.startswith(start):
            behind = start[len(TOOLS) :].lstrip()
            return not behind or (behind[0] == "[" and self._may_be_value(behind))
        if (named := re.match(r"[\w.-]+", start)) is not None:
            behind = start[named.end() :].lstrip(" \t\r")
            is_alone = not behind or (behind[0] == "\n" and behind.lstrip()[:1] in {"", "{"})
            return is_alone and self._is_name(named[0], whole=bool(start[named.end() :]))
        return self._may_be_value(start)

    def _may_be_mark(self, start: str) -> bool:
        mark = MARK.match(start)
        return start in _BEGINNINGS or (mark is not None and self._may_follow(start, mark.end()))

    def _may_be_value(self, start: str) -> bool:
        if start[0] == "[":
            inner = start[1:].lstrip()
            word = _WORD.match(inner)
            is_code = word is not None and self._is_name(word[1], whole=word.end() < len(inner))
            return not inner or is_code or (inner[0] == "{" and self._may_be_value(inner))
        head = _HEAD.match(start)
        if head is None or head[1] is None:
            return head is not None and head.end() == len(start)
        keys = (*CALL_KEYS, *ARGUMENT_KEYS)
        if head[2] is None:
            return any(key.startswith(head[1]) for key in keys)
        if head[1] in NAME_KEYS and head[3] is not None:
            return self._is_name(head[3].removeprefix("functions."), whole=head[4] is not None)
        return head[1] in keys

    def _may_follow(self, text: str, end: int) -> bool:
        """Whether what is behind a mark may be a call."""
        behind = _LEAD.sub("", text[end : end + LOOKED_AT], count=1)
        if not behind or behind[0] in "{[<" or any(start.startswith(behind) for start in ("function", "to=")):
            return True
        word = _WORD.match(behind)
        if word is None:
            return False
        is_whole = word.end() < len(behind)
        return self._is_name(word[1], whole=is_whole) or (
            word[1] in BEFORE_CALL if is_whole else any(known.startswith(word[1]) for known in BEFORE_CALL)
        )

    def _is_name(self, word: str, *, whole: bool) -> bool:
        return word in self._offered if whole else any(name.startswith(word) for name in self._offered)

    def _beginning_of_mark(self, place: int) -> int:
        """Where behind `place`, at the end of what is held, a mark may have begun."""
        start = max(place, len(self._held) - _LONGEST + 1)
        for opening in OPENING.finditer(self._held, start):
            if self._held[opening.start() :] in _BEGINNINGS:
                return opening.start()
        return len(self._held)
