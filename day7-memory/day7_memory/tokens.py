"""数 token：按字符类别估算，不下载词表，离线也能用。"""

import math
import re

CUT = "\n[… cut to fit]"
WORDS = re.compile(r"[A-Za-z]+|\d{1,3}|[^\sA-Za-z\d]")


def estimate_tokens(text: str) -> int:
    """大约多少 token：一个短英文词一个，长词多几个，三位数字一个，一个汉字约 0.7 个。"""
    total = 0.0
    for word in WORDS.findall(text):
        if word.isascii():
            total += 1 + (len(word) > 8) * (len(word) - 8) / 6
        else:
            total += 0.7 if word.isalpha() else 1.0
    return math.ceil(total) if total else int(bool(text))


def cut_to_tokens(text: str, tokens: int) -> str:
    """原文；放不下就是开头加一句“截断了”；连那一句也放不下就是空的。"""
    if estimate_tokens(text) <= tokens:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        fits = estimate_tokens(text[:middle] + CUT) <= tokens
        low, high = (middle, high) if fits else (low, middle - 1)
    return text[:low] + CUT if low else ""
