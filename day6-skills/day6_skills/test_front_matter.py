"""front matter：认得的读对，不认得的说出行号。"""

import pytest

from day6_skills import FrontMatter, FrontMatterProblem, parse_front_matter


def read(head: str) -> dict[str, object]:
    parsed = parse_front_matter(f"---\n{head}\n---\nbody\n")
    assert isinstance(parsed, FrontMatter)
    return parsed.fields


def test_texts_and_lists_are_read_and_nothing_is_guessed() -> None:
    head = """\
name: refund
# a comment
version: 1.10   # not a number
on: yes
quoted: "a: #b"
single: 'x'
short: [售后, "re fund"]
long:
  - one
  - two # second
empty:
url: https://shop.example/a#b
trigger: "退款" # 词
commas: ["a, b", 'c', d]  # 三个
none: # 还没写
later: # 在下面
  - "x" # 一"""
    assert read(head) == {
        "name": "refund",
        "version": "1.10",
        "on": "yes",
        "quoted": "a: #b",
        "single": "x",
        "short": ["售后", "re fund"],
        "long": ["one", "two"],
        "empty": "",
        "url": "https://shop.example/a#b",
        "trigger": "退款",
        "commas": ["a, b", "c", "d"],
        "none": "",
        "later": ["x"],
    }


def test_the_body_is_everything_below() -> None:
    parsed = parse_front_matter("\ufeff---\r\nname: a\r\n---\r\n# 标题\r\n---\r\n完")
    assert parsed == FrontMatter(fields={"name": "a"}, body="# 标题\n---\n完")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("# 没有", 1, "does not begin"),
        ("", 1, "does not begin"),
        ("---\nname: a\n", 1, "no closing line"),
        ("---\nname: a\nname: b\n---\n", 3, "stands there twice"),
        ("---\nname a\n---\n", 2, "not understood"),
        ("---\n- a\n---\n", 2, "not understood"),
        ("---\nname: a\n  deep: b\n---\n", 3, "not understood"),
        ("---\nx: {a: b}\n---\n", 2, "one line of text or as a list"),
        ("---\nx: |\n  a\n---\n", 2, "one line of text or as a list"),
        ("---\nx: [a, b\n---\n", 2, "no closing `]`"),
        ("---\nx: [a, [b]]\n---\n", 2, "the list is not understood"),
        ("---\nx: [a] b\n---\n", 2, "the list is not understood"),
        ('---\nx: "a\n---\n', 2, "quotes are not closed"),
        ('---\nx: "a" b\n---\n', 2, "quotes are not closed"),
        ('---\nx:\n- "a\n---\n', 3, "quotes are not closed"),
    ],
)
def test_what_is_not_understood_is_named_with_its_line(text: str, line: int, reason: str) -> None:
    parsed = parse_front_matter(text)
    assert isinstance(parsed, FrontMatterProblem)
    assert parsed.line == line and reason in parsed.reason
