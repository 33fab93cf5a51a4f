"""Text as search, terminals, channels and the token budget see it.

Owns the one tokeniser (index, query and de-duplication must agree), the one splitter, the display width and
the token estimate. Knows no message, memory or skill. Everything is linear on hostile text.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import re
import tempfile
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Final

__all__ = [
    "TURNING",
    "display_width",
    "estimate_tokens",
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


# --- tokens -----------------------------------------------------------------------------------------------

_CONTINUATION: Final = bytes(range(0x80, 0xC0))
_CLASSES: Final = {
    b"a": b"abcdefghijklmnopqrstuvwxyz" + bytes(range(0xC2, 0xCA)),  # small letters, accented Latin
    b"A": b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    b"0": b"0123456789",
    b" ": b" \t",
    b"\n": b"\r\n",
    b"w": bytes(range(0xCA, 0xE2)),  # other alphabets: Greek, Cyrillic, Arabic, Devanagari, Thai
    b"H": bytes(range(0xE3, 0xEE)),  # Han, kana, Hangul and their punctuation
    b"s": b"\xe2\xee\xef",  # typographic marks, full-width forms
    b"e": bytes(range(0xF0, 0xF8)),  # mostly emoji
}
"""A class for each first byte of a character in UTF-8; all others are symbols, `.`."""
_CLASS_OF: Final = bytes(
    next((ord(name) for name, leads in _CLASSES.items() if byte in leads), ord(".")) for byte in range(256)
)


def _fold(keep: bytes) -> bytes:
    """A table that leaves the classes `keep` and makes every other one `x`."""
    return bytes(byte if byte in keep else ord("x") for byte in range(256))


_SMALL, _CAPITAL, _BLANK, _LINE_END = _fold(b"a"), _fold(b"A"), _fold(b" \n"), _fold(b".\n")


_COMMON: Final = re.compile(
    "["
    "一丁七万三上下不与专世业东严个中丰串为主举久么义之乐九也习书买乱了予争事二于云互五亚些交产享京人亿什"
    "今介仕他付仙代以们件价任份企伊休众优会传伦位低住体何作你使例供依価便保信修俺倍候倫值假做停偷像儿元充"
    "先克免兑党入全八公六共关其具典养内册写军农冠决况冻准几凤凰出击分划列则创初利别到制刷前剧力办功加务动"
    "助势勒動務包化北区医十午华协单南博卡即历原去县参及友双反发取受变口另只可台右号司合同名后吗否吧听告员"
    "周命和品哈哪售商啪器四回因团国图在地场址坛型城域基堂場增士声处备复外多夜大天太夫央奇奖套女好如妇妹妻"
    "始姐委娱婆婷子字存学宁安完官定宝实客家容对导小少就尼局展属山川州工市布师常幕平年幸广序库应底度建开式"
    "强当录彩影待律得微心必快态怎思性总息情想意感戏成我战截户房所手打扫技投护报拍招持挂指按换据排接推提搜"
    "播支收改放政效教数整文料斯新方施旗无日早时明易星是显時晚普更最月有朋服期未本机权材来极林果查标校样格"
    "案棋植業模次欢欧款止正此步比毛民水永求江没河治法注洲活流测海消深清港游源满演漫点热然熟爱爽片版牌物特"
    "犯狠猜率王玩环现球理生用由电男画留略病登白百的益监盘盟目直相看真着知码研破确碰示社神票福种科秘积称程"
    "稳空突立站竞章端符第等简算管米类精系素索红级纪线组经绑结给统续维综编网置美群老考者职联肖股育胆能自至"
    "航色节英草荐菜营蕉藏虎融行表装西要观规视觉解言設计认议讯记许论设诀证评识词试话询语说请读调谢谱資财责"
    "账质购费资赌赚赛赢起超越足跑路身載车转软载输达过运近返还这进违追退送选透通速造道邀那部都采里重野量金"
    "钟钱银链销锋长開間门问间闻阅阳际陆限院除险随集電需霸青靠面韩音页项预领频题额飞餐首香马验骗體高黄黑龙"
    "]+"
)
"""Characters of which most of the words of several characters in the vocabulary `o200k_base` are made."""
_HAN: Final = re.compile("[\u4e00-\u9fff]+")
_SYLLABLES: Final = re.compile("[\u3040-\u30ff\uac00-\ud7af]")
_MARKS: Final = re.compile("[\u3000-\u303f\uff00-\uffef]+")
_TYPOGRAPHIC: Final = re.compile("[\u2000-\u2fff]+")
_ASCII: Final = bytes(range(0x80))
_USUAL: Final = bytes(range(0xB0, 0xD8))
"""First bytes in GB 2312 of the 3,755 characters in common use."""


_LEAST_OPAQUE: Final = 60
_RUN: Final = re.compile("[A-Za-z0-9+/]{60,}")
_COUNTED_CHARS: Final = 20_000
"""Characters up to which a text is counted exactly where that is possible; its time grows faster than the text."""
_VOCABULARY: Final = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
"""`tiktoken` keeps the file under the SHA-1 of this address."""


def estimate_tokens(text: str) -> int:
    """About how many tokens a model of the GPT-4o family counts, from classes of characters; needs no data.

    Where `tiktoken` is installed and has its vocabulary on this machine, it counts, but for very long texts.
    It follows how byte pair encoders cut a text before they look into their vocabulary: a word with the
    blank or symbol before it, three digits, a run of symbols, a run of blanks. The weights agree within a
    few percent with counts published for prose in many languages; a single short text may be off by more.
    """
    if len(text) <= _COUNTED_CHARS and (exact := _exact()) is not None:
        return exact(text)
    if len(text) >= _LEAST_OPAQUE:
        rest = _RUN.sub(lambda run: "" if _is_opaque(run[0]) else run[0], text)
        if len(rest) < len(text):
            return estimate_tokens(rest) + math.ceil(0.66 * (len(text) - len(rest)))
    # One byte a character: counting pairs of classes is much faster than any pattern over the text.
    plain = text.isascii()
    shape = text.encode("utf-8", "replace").translate(_CLASS_OF, b"" if plain else _CONTINUATION)
    count = shape.count
    words = shape.translate(_SMALL).count(b"xa") + shape.startswith(b"a") - count(b"Aa")
    capitals = shape.translate(_CAPITAL).count(b"xA") + shape.startswith(b"A")
    long_words = 0.25 * count(b"a" * 8) + 4.5 * count(b"a" * 16) + 0.8 * count(b"AAAA")
    blanks = count(b" " * 80) + count(b"\n" * 16) + count(b" 0") + shape.translate(_BLANK).count(b"  x")
    lines = shape.translate(_LINE_END).count(b"x\n") + shape.startswith(b"\n")
    numbers, symbols = _thirds(shape, b"0"), _thirds(shape, b".")
    glued = 0.5 * (count(b"a.a") + count(b"a.A") + count(b"0.a"))
    other = 0.0 if plain else _beyond_ascii(text, shape)
    total = words + capitals + long_words + blanks + lines + numbers + symbols - glued + other
    return max(math.ceil(total), 1 if text else 0)


def _is_opaque(run: str) -> bool:
    """Whether it is base64 and the like, of which no word is in a vocabulary: capitals and digits all over."""
    digits, capitals = sum(map(str.isdigit, run[:300])), sum(map(str.isupper, run[:300]))
    return 12 * digits >= min(len(run), 300) and 5 * capitals >= min(len(run), 300)


@lru_cache(maxsize=1)
def _exact() -> Callable[[str], int] | None:
    """The count of `tiktoken`, if it needs no download for it."""
    if find_spec("tiktoken") is None:
        return None
    usual = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    cache = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR") or usual
    if not os.path.exists(os.path.join(cache, hashlib.sha1(_VOCABULARY.encode()).hexdigest())):
        return None
    encode = importlib.import_module("tiktoken").get_encoding("o200k_base").encode_ordinary
    return lambda text: len(encode(text))


def _beyond_ascii(text: str, shape: bytes) -> float:
    """Tokens of characters beyond ASCII, of which each alphabet has its own rate."""
    count = shape.count
    words = sum(count(before + b"w") for before in (b" ", b"\n", b"a", b"s", b".")) + shape.startswith(b"w")
    wide = (
        _chinese(text)
        if count(b"H") and not _SYLLABLES.search(text)
        else 0.7 * count(b"H") + 0.9 * count(b"s")
    )
    return 0.4 * words + 0.3 * count(b"w") + wide + 1.8 * count(b"e")


def _chinese(text: str) -> float:
    """Tokens of Chinese characters and marks: words of common characters are one token, what is rare takes several."""
    han = len(text) - len(_HAN.sub("", text))
    common = len(text) - len(_COMMON.sub("", text))
    simplified = text.encode("gb2312", "ignore").translate(None, _ASCII)[::2]
    usual = len(simplified) - len(simplified.translate(None, _USUAL))
    marks = len(text) - len(_MARKS.sub("", text))
    typographic = len(text) - len(_TYPOGRAPHIC.sub("", text))
    usual = max(0, min(usual, han) - common)
    return (
        0.48 * common + 1.4 * usual + 1.25 * max(0, han - common - usual) + 1.75 * marks + 0.9 * typographic
    )


def _thirds(shape: bytes, name: bytes) -> int:
    """How many pieces of up to three the runs of `name` make."""
    return shape.replace(name * 3, b"#").replace(name * 2, b"#").replace(name, b"#").count(b"#")
