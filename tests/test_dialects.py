"""Platforms that know some of Markdown get that, and the rest as a text that can be read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.channel.dialects import to_dingtalk, to_wecom_app, to_wecom_bot

DIALECTS = [to_wecom_app, to_wecom_bot, to_dingtalk]
TABLE = "|n|m|\n|:-|-|\n|`x`|1\\|2|"
CODE = "```py\nif a < b:\n    # *no* `x`\n\n1. y\n```"


@pytest.mark.parametrize("to_dialect", DIALECTS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "# One\n\n###### Six",
        "**bold** and `code`, 1 < 2 & 3, snake_case, 50%",
        "[docs](https://a.b/c?d=1&e=_2_)",
        "> quoted\n>\n> more",
        "- a\n- b\n  - c\n\n1. one\n2. two",
        "~~gone~~ &amp; [x] [note]: kept [1][2]",
        "7. seven\n8. eight\n\n   more\n\n9. nine",
    ],
)
def test_what_every_dialect_knows_stays_as_it_is(to_dialect: Callable[[str], str], text: str) -> None:
    assert to_dialect(text) == text


@pytest.mark.parametrize(
    ("text", "app", "bot", "dingtalk"),
    [
        ("*it* _it_ ***both***", "it it **both**", "*it* *it* ***both***", "*it* *it* ***both***"),
        ("a\nb\\\nc", "a\nb\nc", "a\nb\nc", "a  \nb  \nc"),
        ("> a\n> b", "> a\n> b", "> a\n> b", "> a  \n> b"),
        (r"\*no\* \# x", "*no* # x", r"\*no\* \# x", r"\*no\* \# x"),
        ("<b>x</b> a<b", "<b>x</b> a<b", "<b>x</b> a<b", "&lt;b>x&lt;/b> a&lt;b"),
        ("<font color='info'>x</font>", *["<font color='info'>x</font>"] * 2, "&lt;font color='info'>x&lt;/font>"),
        (TABLE, "n | m\n`x` | 1|2", "| n | m |\n| --- | --- |\n| `x` | 1\\|2 |", "n | m  \n`x` | 1|2"),
        (
            CODE,
            "`if a < b:`\n    # *no* `x`\n\n`1. y`",
            CODE,
            "if a &lt; b:  \n&nbsp;&nbsp;&nbsp;&nbsp;\\# \\*no\\* \\`x\\`  \n  \n1\\. y",
        ),
        ("    <a>\n    ```", "`<a>`\n```", "````\n<a>\n```\n````", "&lt;a&gt;  \n\\`\\`\\`"),
        ("```\nopen", "`open`", "```\nopen\n```", "open"),
        ("- > a\n\n  ```\n  b\n  ```", "- > a\n\n  `b`", "- > a\n\n  ```\n  b\n  ```", "- > a\n\n  b"),
    ],
)  # fmt: skip
def test_the_rest_is_said_with_what_a_dialect_has(text: str, app: str, bot: str, dingtalk: str) -> None:
    assert (to_wecom_app(text), to_wecom_bot(text), to_dingtalk(text)) == (app, bot, dingtalk)


@pytest.mark.parametrize("to_dialect", DIALECTS)
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\n===", "# a"),
        ("***", "---"),
        ("* a\n+ b", "- a\n\n- b"),
        ("-\n- b", "-\n- b"),
        ("3) a\n   * b", "3. a\n   - b"),
        ("![pic](http://a/b.png) ![](c)", "[pic](http://a/b.png) [image](c)"),
        ("[![pic](http://a/b.png)](http://c)", "[pic](http://c)"),
        ("[a](http://b/(c) 'title')", "[a](http://b/%28c%29)"),
        ("<https://a.b> <a@b.c>", "[https://a.b](https://a.b) [a@b.c](mailto:a@b.c)"),
        ("[a](javascript:x)", "[a](javascript:x)"),
        ("``a`b`` `` `c` ``", "``a`b`` `` `c` ``"),
        ("\r\na\r\n\r\n\r\n\r\nb\r\n", "a\n\nb"),
    ],
)
def test_one_way_of_writing_is_used_for_all_that_mean_the_same(
    to_dialect: Callable[[str], str], text: str, shown: str
) -> None:
    assert to_dialect(text) == shown


@pytest.mark.parametrize(
    ("dialects", "marks"), [(DIALECTS, "*_[]!<>#-+|\\ \n\t:1."), ([to_wecom_bot], "*_`~[]!<>#-+|\\ \n\t:1.")]
)
@given(data=st.data())
def test_no_word_is_lost(dialects: list[Callable[[str], str]], marks: str, data: st.DataObject) -> None:
    """Beside the language of code, which only what shows code as such can show, and addresses."""
    around = data.draw(st.lists(st.text(marks, max_size=8), max_size=30))
    text = "".join(f"{chr(0x4E00 + number)}{some}" for number, some in enumerate(around))
    for to_dialect in dialects:
        assert words(to_dialect(text)) == words(text)


def words(text: str) -> str:
    return "".join(each for each in text if each >= "\u4e00")


def test_what_is_nested_beyond_all_reason_stays_as_it_is() -> None:
    assert to_wecom_app("> " * 25 + "字") == "> " * 25 + "字"


@pytest.mark.parametrize(
    "hostile",
    ["![[" * 20_000, "*a " * 20_000, "[a](" * 20_000, "> " * 30_000, "- " * 30_000, "*" * 60_000]
    + ["|a|\n|-|\n" * 2000, "|" * 20_000 + "\n|" + "-|" * 20_000 + "\n" + "|\n" * 2000, "[" * 2000],
)
def test_hostile_texts_are_shown_in_bounded_time(hostile: str) -> None:
    """Only the time limit of the test run can fail here: without bounds this would not end."""
    assert all(to_dialect(hostile) for to_dialect in DIALECTS)
