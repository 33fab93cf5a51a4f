"""The few sentences that the program itself says in a conversation, in Chinese and English."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from miniclaw.agent.budget import Limit, Stop

__all__ = ["is_chinese", "limit_sentence", "memory_line", "stopped_note", "with_memory_line"]

_HAN: Final = re.compile(r"[\u3400-\u9fff]")

_LIMITS: Final[dict[Limit, tuple[str, str]]] = {
    "iterations": ("模型调用次数已到上限", "the limit of model calls was reached"),
    "tool_calls": ("工具调用次数已到上限", "the limit of tool calls was reached"),
    "tokens": ("令牌数已到上限", "the token limit was reached"),
    "tokens_today": (
        "你今天的令牌数已用完，世界时零点后恢复",
        "your tokens of today are used up; there are new ones after midnight UTC",
    ),
    "seconds": ("时间已到上限", "the time limit was reached"),
    "money": ("费用已到上限", "the spending limit was reached"),
    "money_today": (
        "你今天的费用已到上限，世界时零点后恢复",
        "your spending limit of today was reached; it is free again after midnight UTC",
    ),
    "unpriced": (
        '设了费用上限，但模型 {model} 没有价格；请在 miniclaw.toml 里写 [prices."{model}"]，'
        "填 input 和 output（每百万令牌的美元价，免费的写 0）",
        "there is a spending limit, but model {model} has no price; set input and output (US dollars per million "
        'tokens, 0 if it is free) under [prices."{model}"] in miniclaw.toml',
    ),
}


def is_chinese(text: str) -> bool:
    """Whether a person who wrote this is answered in Chinese."""
    return _HAN.search(text) is not None


def limit_sentence(stop: Stop, question: str, last_result: str, shown: str = "") -> str:
    """The closing words of a turn that a limit ended: what was shown or is known so far, and which limit."""
    chinese, english = (words.format(model=stop.model) for words in _LIMITS[stop.limit])
    if shown:
        closing = f"（没有说完：{chinese}。）" if is_chinese(question) else f"(Not finished: {english}.)"
        return f"{shown}\n\n{closing}"
    known = last_result.strip()[:500]
    if is_chinese(question):
        tail = f"目前得到的最后一个结果是：{known}" if known else "目前还没有可用的结果。"
        return f"这一轮没有做完：{chinese}。{tail}"
    tail = f"The last result so far: {known}" if known else "There is no usable result yet."
    return f"This turn is not finished: {english}. {tail}"


def stopped_note(question: str) -> str:
    """What the history says where the user stopped an answer."""
    return "（用户在这里停止了回答。）" if is_chinese(question) else "(The user stopped this answer here.)"


def memory_line(data: Mapping[str, Any], *, chinese: bool) -> str:
    """How many memories an answer used and saved, by the data of its end; empty where it did neither."""
    used, saved = (len(data.get(name) or ()) for name in ("used_memories", "saved_memories"))
    if chinese:
        said = (f"有 {used} 条记忆插入" if used else "", f"保存了 {saved} 条记忆" if saved else "")
        return "，".join(filter(None, said))
    counted = ((used, "used"), (saved, "saved"))
    return ", ".join(f"{n} {'memory' if n == 1 else 'memories'} {what}" for n, what in counted if n)


def with_memory_line(text: str, data: Mapping[str, Any], question: str) -> str:
    """An answer for a chat that shows nothing but text."""
    chinese = is_chinese(question)
    line = memory_line(data, chinese=chinese)
    return f"{text}\n\n{f'（{line}）' if chinese else f'({line})'}" if line else text
