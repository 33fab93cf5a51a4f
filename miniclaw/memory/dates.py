"""Which day, month or year a question speaks of: "on 8 May", "last May", "上周三", "4月27日", "2023-05-01"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, Self

__all__ = ["DateHint"]

_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        "january february march april may june july august september october november december".split(), 1
    )
}
_SHORT: Final = {name[:3]: number for name, number in _MONTHS.items()}
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_ISO = re.compile(r"(?<!\d)((?:19|20)\d\d)[-/.](\d{1,2})(?:[-/.](\d{1,2}))?(?!\d)")
_CHINESE = re.compile(r"(?:((?:19|20)\d\d)年)?(\d{1,2})月(?:份|(\d{1,2})[日号]?)?")
_NAMES = "|".join([*_MONTHS, "sept\\.?", *(f"{name}\\.?" for name in _SHORT)])
_ENGLISH = re.compile(
    rf"(?:\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? )?\b({_NAMES})(?!\w)(?: (\d{{1,2}})(?:st|nd|rd|th)?\b(?!\d))?(?:,? ?((?:19|20)\d\d))?"
)
_YEAR = re.compile(r"(?<!\d)((?:19|20)\d\d)(?:年|\b)")
_MAY: Final = re.compile(r"\b(?:in|of|on|during|since|by|last|this|next|early|late) may\b")
_AGO = re.compile(r"\b(\d{1,4}) (day|week|month)s? ago\b|(\d{1,4}) ?(天|周|个?星期|个?月)(?:之)?前")
_RELATIVE: Final = {
    "the day before yesterday": -2,
    "yesterday": -1,
    "last night": -1,
    "today": 0,
    "this morning": 0,
    "tonight": 0,
    "tomorrow": 1,
    "大前天": -3,
    "前天": -2,
    "昨天": -1,
    "昨晚": -1,
    "今天": 0,
    "明天": 1,
    "后天": 2,
}
_LAST_DAY = re.compile(
    rf"\b(last|this|on) ({'|'.join(_DAYS)})\b|(上上|上|这|本)(?:个)?(?:周|星期|礼拜)([一二三四五六日天])"
)


_LAST_MONTH = re.compile(r"\b(?:last|this) month\b|(?:上|这|本)个?月")
_LAST_WEEK = re.compile(r"\b(last|this) week\b|(上上|上|这|本)(?:个)?(?:周|星期|礼拜)")
_HAN_NUMBER = re.compile(
    r"([一二两三四五六七八九]?十[一二三四五六七八九]?|[一二两三四五六七八九])(?=月|[日号]|(?:天|周|个?星期|个?月)(?:之)?前)"
)
_NUMBERS: Final = {
    name: number
    for number, name in enumerate("one two three four five six seven eight nine ten eleven twelve".split(), 1)
} | {"a": 1, "an": 1}
_ENGLISH_NUMBER = re.compile(rf"\b({'|'.join(_NUMBERS)}) (?=(?:day|week|month)s? ago\b)", re.IGNORECASE)
_YEARS: Final = {"前年": -2, "去年": -1, "今年": 0, "last year": -1, "this year": 0}


def _spelt_out(text: str, today: str) -> str:
    """Numbers in words as digits, and the years that are relative to today as years, where a date may follow."""
    text = _HAN_NUMBER.sub(lambda match: str(_number(match[1])), text)
    text = _ENGLISH_NUMBER.sub(lambda match: f"{_NUMBERS[match[1].lower()]} ", text)
    for words, years in _YEARS.items() if today else ():
        text = text.replace(words, f"{int(today[:4]) + years}{'年' if words[-1] == '年' else ''}")
    return text


def _number(text: str) -> int:
    tens, ten, ones = text.replace("两", "二").rpartition("十")
    digits = "零一二三四五六七八九"
    return (digits.index(tens or "一") * 10 if ten else 0) + (digits.index(ones) if ones else 0)


@dataclass(frozen=True, slots=True)
class DateHint:
    """A year, month or day, as far as it was named."""

    year: int | None
    month: int | None
    day: int | None

    @classmethod
    def of(cls, text: str, today: str = "") -> Self | None:
        """What a question says of time; relative words need `today` as `YYYY-MM-DD`."""
        text = _spelt_out(text, today)
        lower = text.lower()
        if match := _ISO.search(lower):
            return cls._sound(match[1], match[2], match[3])
        if match := _CHINESE.search(text):
            return cls._sound(match[1], match[2], match[3])
        if (day := _relative(lower, today)) is not None:
            return cls(day.year, day.month, day.day)
        if match := _ENGLISH.search(lower):
            has_number = match[1] or match[3] or match[4]
            # "may", "mar", "jan": without a number each is something else as often as not.
            if has_number or len(match[2]) > 3 or (match[2] == "may" and _MAY.search(lower)):
                return cls._sound(match[4], str(_SHORT[match[2][:3]]), match[1] or match[3])
        if match := _YEAR.search(lower):
            return cls(int(match[1]), None, None)
        if today and (match := _LAST_MONTH.search(lower)):
            months = int(today[:4]) * 12 + int(today[5:7]) - (2 if match[0][0] in "l上" else 1)
            return cls(months // 12, months % 12 + 1, None)
        if today and (match := _LAST_WEEK.search(lower)):
            now = date.fromisoformat(today)
            back = {"last": 7, "上上": 14, "上": 7}.get(match[1] or match[2], 0)
            monday = now - timedelta(days=now.weekday() + back)
            return cls(monday.year, monday.month, monday.day)
        return None

    @classmethod
    def _sound(cls, year: str | None, month: str | None, day: str | None) -> Self | None:
        found = cls(*(int(part) if part else None for part in (year, month, day)))
        if not 1 <= (found.month or 1) <= 12 or not 1 <= (found.day or 1) <= 31:
            return None
        return found

    def fit(self, when: str) -> float:
        """How well a day fits, 0 to 1; what happened on a day is often told a few days, or a month, later."""
        year, month, day = (int(part) for part in when.split("-"))
        if self.year is not None and year != self.year:
            return 0.0
        if self.month is None:
            return 0.7
        if month != self.month:
            return 0.3 if self.day is None and month == self.month % 12 + 1 else 0.0
        if self.day is None:
            return 0.7
        return 1.0 if day == self.day else (0.6 if 0 < day - self.day <= 7 else 0.0)


def _relative(text: str, today: str) -> date | None:
    if not today:
        return None
    now = date.fromisoformat(today)
    for words, days in _RELATIVE.items():
        if words in text:
            return now + timedelta(days=days)
    if match := _AGO.search(text):
        number, unit = int(match[1] or match[3]), (match[2] or match[4])[-1]
        scale = {"y": 1, "天": 1, "k": 7, "周": 7, "期": 7, "h": 30, "月": 30}[unit]
        return now - timedelta(days=number * scale)
    if match := _LAST_DAY.search(text):
        weekday = (
            _DAYS.index(match[2])
            if match[2]
            else "一二三四五六日天".index(match[4]) % 7
            if match[4] != "天"
            else 6
        )
        monday = now - timedelta(days=now.weekday())
        back = {"last": 7, "上上": 14, "上": 7}.get(match[1] or match[3], 0)
        return monday + timedelta(days=weekday - back)
    return None
