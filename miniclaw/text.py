"""Text as search, terminals and channels see it.

Owns the one tokeniser (index, query and de-duplication must agree), the one splitter and the display width.
Knows no message, memory or skill. Everything is linear on hostile text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Final

__all__ = [
    "TURNING",
    "display_width",
    "fold",
    "split_text",
    "tokenize",
]

_CJK: Final = (
    "\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Scripts written without spaces between words, as the inside of a character class: Han, kana, Hangul."""

# --- search -----------------------------------------------------------------------------------------------

_SEGMENT = re.compile(rf"([{_CJK}]+)|([^\W_{_CJK}]+(?:['’][^\W\d_{_CJK}]{{1,3}}\b)?)")
_SLICE = re.compile(r"[\s\S]{1,1024}(?=[\x00-\x7f]|\Z)|[\s\S]{1,1024}")
_LONGEST_WORD: Final = 64
"""Characters of a word that count; more is no word of any language."""
_STOP_WORDS: Final = frozenset(
    "a about am an and are as at be been but by can could did do does for from had has have he her him his how "
    "i if in into is it its me my of on or our she should so that the their them then there these they this "
    "those to us was we were what when where which who will with would you your".split()
)
_STOP_CHARACTERS: Final = frozenset("的了是我你他她它们在有和与就都也很还吗呢吧啊这那个")


def fold(text: str) -> str:
    """NFKC and lower case, the form in which texts are compared."""
    if text.isascii():
        return text.lower()
    # Normalising is quadratic in a run of combining marks. A cut before an ASCII character changes nothing.
    return "".join(unicodedata.normalize("NFKC", piece) for piece in _SLICE.findall(text)).lower()


def tokenize(text: str) -> list[str]:
    """The terms of a text in order, for index, query and comparison alike.

    Words are stemmed lightly and stop words left out; a run of CJK gives its characters and its pairs.
    """
    terms: list[str] = []
    for match in _SEGMENT.finditer(fold(text)):
        run, word = match.groups()
        if run is not None:
            terms += (character for character in run if character not in _STOP_CHARACTERS)
            terms += map("".join, zip(run, run[1:], strict=False))
        elif (stem := _stem(word[:_LONGEST_WORD])) is not None:
            terms.append(stem)
    return terms


@lru_cache(maxsize=8192)
def _stem(word: str) -> str | None:
    """The stem of a folded word, or `None` for a stop word."""
    word = re.split("['’]", word, maxsplit=1)[0]
    if word in _STOP_WORDS:
        return None
    return word if len(word) <= 3 or not word.isascii() else _english()(word)


@lru_cache(maxsize=1)
def _english() -> Callable[[str], str]:
    import snowballstemmer  # only who searches pays for it

    stem: Callable[[str], str] = snowballstemmer.stemmer("english").stemWord
    return stem


TURNING: Final = {
    code: f"\\u{code:04x}" for code in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Escapes of the characters that turn text round, for `translate`: who is asked sees what will run."""


# --- width and splitting ----------------------------------------------------------------------------------


def display_width(text: str) -> int:
    """Columns that the text takes in a terminal: East Asian wide characters two, marks and controls none."""
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(map(_width, text))


@lru_cache(maxsize=4096)
def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


_BREAKS: Final = (
    ("\n\n",),
    ("\n",),
    (". ", "! ", "? ", "。", "！", "？", "…"),
)
"""Where to cut rather than later in the part, best first: ends of paragraphs, lines, sentences."""
_WORD_ENDS: Final = (" ", "\t", "，", "、", "；")


def split_text(text: str, limit: int, *, measure: Callable[[str], int] = len) -> list[str]:
    """Cut a text into parts that join to exactly the same text; at least one part.

    A part ends with a paragraph, line or sentence where that leaves it at least half full, else behind a
    word where that leaves it a third full, else anywhere between two characters.

    Args:
        text: what to split.
        limit: what `measure` may give at most for a part.
        measure: the size of a text, such as its UTF-8 bytes; must not shrink as the text grows.

    Raises:
        ValueError: one character alone is larger than `limit`.
    """
    parts: list[str] = []
    start, guess = 0, max(limit, 1)
    while start < len(text):
        end = _furthest_end(text, start, limit, measure, guess)
        guess = end - start
        if end < len(text):
            end = _best_break(text, start, end)
        parts.append(text[start:end])
        start = end
    return parts or [""]


def _furthest_end(text: str, start: int, limit: int, measure: Callable[[str], int], guess: int) -> int:
    fits, step = start, guess
    while (end := min(start + step, len(text))) > fits and measure(text[start:end]) <= limit:
        if end == len(text):
            return end
        fits, step = end, step * 2
    while end - fits > 1:
        middle = (fits + end) // 2
        if measure(text[start:middle]) <= limit:
            fits = middle
        else:
            end = middle
    if fits == start:
        raise ValueError(f"the limit {limit} is too small for the character {text[start]!r}")
    return fits


def _best_break(text: str, start: int, end: int) -> int:
    half = start + (end - start) // 2
    for marks in _BREAKS:
        found = max(text.rfind(mark, half, end) + len(mark) for mark in marks)
        if found > half:
            return found
    third = start + (end - start) // 3
    word_end = max(text.rfind(mark, third, end) + 1 for mark in _WORD_ENDS)
    return word_end if word_end > third else end
