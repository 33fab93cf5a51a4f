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
        "~~gone~~ &amp; [x]\n\n[note]: kept\n\n[1][2]",
        "7. seven\n8. eight\n\n   more\n\n9. nine",
    ],
)
def test_what_every_dialect_knows_stays_as_it_is(to_dialect: Callable[[str], str], text: str) -> None:
    assert to_dialect(text) == text


@pytest.mark.parametrize(
    ("text", "app", "dingtalk"),
    [
        ("*it* _it_ ***both***", "it it **both**", "*it* *it* ***both***"),
        ("a\nb\\\nc", "a\nb\nc", "a  \nb  \nc"),
        ("> a\n> b", "> a\n> b", "> a  \n> b"),
        (r"\*no\* \# x", "*no* # x", r"\*no\* \# x"),
        ("<b>x</b> a<b", "<b>x</b> a<b", "&lt;b>x&lt;/b> a&lt;b"),
        ("<font color='info'>x</font>", "<font color='info'>x</font>", "&lt;font color='info'>x&lt;/font>"),
        (TABLE, "n | m\n`x` | 1|2", "n | m  \n`x` | 1|2"),
        (
            CODE,
            "`if a < b:`\n    # *no* `x`\n\n`1. y`",
            "if a &lt; b:  \n&nbsp;&nbsp;&nbsp;&nbsp;\\# \\*no\\* \\`x\\`  \n  \n1\\. y",
        ),
        ("    <a>\n    ```", "`<a>`\n```", "&lt;a&gt;  \n\\`\\`\\`"),
        ("```\nopen", "`open`", "open"),
        ("- > a\n\n  ```\n  b\n  ```", "- > a\n\n  `b`", "- > a\n\n  b"),
    ],
)
def test_the_rest_is_said_with_what_a_dialect_has(text: str, app: str, dingtalk: str) -> None:
    assert (to_wecom_app(text), to_dingtalk(text)) == (app, dingtalk)


def test_for_a_bot_only_images_are_something_else() -> None:
    for text in (TABLE, CODE, "*a*\\\nb\n===\n\n", "    <a>\n    ```"):
        assert to_wecom_bot(text) == text
    code = "````\n<a>\n```\n````"
    table = "| n | m |\n| --- | --- |\n| `x` | 1\\|2 |"
    assert to_wecom_bot(f"![a](b) *c*\n\n{TABLE}\n\n{code}\n\n`![d](e)`\n") == (
        f"[a](b) *c*\n\n{table}\n\n{code}\n\n`![d](e)`"
    )


@pytest.mark.parametrize("to_dialect", [to_wecom_app, to_dingtalk])
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
    text = "![" + "".join(f"{chr(0x4E00 + number)}{some}" for number, some in enumerate(around))
    for to_dialect in dialects:
        assert words(to_dialect(text)) == words(text)


def words(text: str) -> str:
    return "".join(each for each in text if each >= "\u4e00")


def test_what_is_nested_beyond_all_reason_stays_as_it_is() -> None:
    assert to_wecom_app("> " * 25 + "字") == "> " * 25 + "字"


@pytest.mark.parametrize(
    "hostile", ["![[" * 4_000, "*a_" * 4_000, "> " * 4_000, "- " * 4_000, "|" * 4_000 + "\n|" + "-|" * 4_000]
)
def test_hostile_texts_are_shown(hostile: str) -> None:
    """Only the time limit of the test run can fail here: what is not linear would not end."""
    assert all(to_dialect(f"![{hostile}") for to_dialect in DIALECTS)
