"""The few sentences that the program itself says in a conversation, in Chinese and English."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_chinese", "limit_sentence", "stopped_note"]

_HAN: Final = re.compile(r"[\u3400-\u9fff]")

_LIMITS: Final = {
    "iterations": ("模型调用次数已到上限", "the limit of model calls was reached"),
    "tool_calls": ("工具调用次数已到上限", "the limit of tool calls was reached"),
    "tokens": ("令牌数已到上限", "the token limit was reached"),
    "seconds": ("时间已到上限", "the time limit was reached"),
    "money": ("费用已到上限", "the spending limit was reached"),
}


def is_chinese(text: str) -> bool:
    """Whether a person who wrote this is answered in Chinese."""
    return _HAN.search(text) is not None


def limit_sentence(stopped_by: str, question: str, last_result: str) -> str:
    """The closing sentence of a turn that a limit ended: which limit, and what is known so far."""
    chinese, english = _LIMITS[stopped_by]
    known = last_result.strip()[:500]
    if is_chinese(question):
        tail = f"目前得到的最后一个结果是：{known}" if known else "目前还没有可用的结果。"
        return f"这一轮没有做完：{chinese}。{tail}"
    tail = f"The last result so far: {known}" if known else "There is no usable result yet."
    return f"This turn is not finished: {english}. {tail}"


def stopped_note(question: str) -> str:
    """What the history says where the user stopped an answer."""
    return "（用户在这里停止了回答。）" if is_chinese(question) else "(The user stopped this answer here.)"
