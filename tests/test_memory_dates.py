"""Which day a question speaks of, and how well a day fits it."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from miniclaw.memory.dates import DateHint

TODAY = "2026-03-11"
"""A Wednesday."""


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What did we say on 8 May?", (None, 5, 8)),
        ("the trip of May 8th, 2023", (2023, 5, 8)),
        ("Where was she last May?", (None, 5, None)),
        ("in Sept. 2024", (2024, 9, None)),
        ("4月27日你推荐了什么？", (None, 4, 27)),
        ("2023年12月份的计划", (2023, 12, None)),
        ("on 2023-05-01 or so", (2023, 5, 1)),
        ("2023/5", (2023, 5, None)),
        ("what happened in 2019", (2019, None, None)),
        ("what did I say yesterday?", (2026, 3, 10)),
        ("the day before yesterday", (2026, 3, 9)),
        ("昨天说的", (2026, 3, 10)),
        ("大前天", (2026, 3, 8)),
        ("上周三开会说了什么", (2026, 3, 4)),
        ("上上周日", (2026, 3, 1)),
        ("这周五", (2026, 3, 13)),
        ("last Monday", (2026, 3, 2)),
        ("3 weeks ago", (2026, 2, 18)),
        ("10天前", (2026, 3, 1)),
        ("两天后见", None),
        ("two days ago", (2026, 3, 9)),
        ("a week ago", (2026, 3, 4)),
        ("三周前", (2026, 2, 18)),
        ("十二天前", (2026, 2, 27)),
        ("上个月去了哪里", (2026, 2, None)),
        ("last month", (2026, 2, None)),
        ("last week", (2026, 3, 2)),
        ("上周的会", (2026, 3, 2)),
        ("去年五月", (2025, 5, None)),
        ("前年十二月二十五日", (2024, 12, 25)),
        ("五月三号说的", (None, 5, 3)),
        ("last year", (2025, None, None)),
        ("三个人", None),
        ("you may be right", None),
        ("on 31/31", None),
        ("13月", None),
        ("", None),
    ],
)
def test_a_question_names_a_day_a_month_or_a_year(
    question: str, expected: tuple[int | None, int | None, int | None] | None
) -> None:
    hint = DateHint.of(question, TODAY)
    assert (hint and (hint.year, hint.month, hint.day)) == expected


def test_what_is_relative_needs_a_today() -> None:
    assert DateHint.of("yesterday") is None
    assert DateHint.of("上周三") is None


def test_the_day_itself_fits_best_and_the_days_after_it_less() -> None:
    hint = DateHint(2023, 5, 8)
    days = ["2023-05-08", "2023-05-12", "2023-05-07", "2023-06-08", "2022-05-08"]
    assert [hint.fit(day) for day in days] == [1.0, 0.6, 0.0, 0.0, 0.0]


def test_a_month_fits_its_days_and_a_little_those_of_the_next() -> None:
    hint = DateHint(None, 12, None)
    assert hint.fit("2023-12-31") > hint.fit("2024-01-05") > hint.fit("2024-02-01") == 0.0
    assert DateHint(2023, None, None).fit("2023-01-01") > DateHint(2023, None, None).fit("2024-01-01")


@given(st.text(), st.dates(date(1970, 1, 1), date(2100, 12, 31)))
@example("9" * 5000 + " days ago", date(2026, 1, 1))
@example("9999 months ago", date(1970, 1, 1))
@example("٣月٣日", date(2026, 1, 1))
def test_any_text_gives_a_sound_hint_or_none(text: str, today: date) -> None:
    hint = DateHint.of(text, today.isoformat())
    assert hint is None or (1 <= (hint.month or 1) <= 12 and 1 <= (hint.day or 1) <= 31)
    assert hint is None or 0 <= hint.fit(today.isoformat()) <= 1
