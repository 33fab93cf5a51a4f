"""Platforms that know some of Markdown get that, and the rest as a text that can be read."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from miniclaw.channel.bounded import STEPS, bounded, parsed
from miniclaw.channel.dialects import to_dingtalk, to_wecom_app, to_wecom_bot
from miniclaw.channel.platforms.feishu_content import to_card

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
        ("```some words", "```some words", "```some words"),
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
        f"[a](b) *c*\n\n{table}\n\n{code}\n\n`!\u200b[d](e)`"
    )
    assert to_wecom_bot("```rust\nvec![1]\n```\n\n[a](b)") == "```rust\nvec![1]\n```\n\n[a](b)"


@pytest.mark.parametrize("to_dialect", DIALECTS)
@pytest.mark.parametrize(
    "text",
    ["<@li>", "`<@li>`", "[![a<](x)@li>](http://y)", "![](u) <@all>", "![" * 3000 + "<@li>", "![<](u)@li>"],
)
def test_nobody_is_called(to_dialect: Callable[[str], str], text: str) -> None:
    assert "<@" not in to_dialect(text)


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


EVERYTHING = MarkdownIt("commonmark", {"html": True, "maxNesting": 100}).enable("table")


def images(text: str) -> list[str]:
    """What a client loads that reads as CommonMark says."""
    tokens = [token for block in EVERYTHING.parse(text) for token in (block, *(block.children or ()))]
    return [token.content for token in tokens if token.type == "image"]


def is_inert(shown: str) -> bool:
    """Whether also a client that reads more roughly finds nothing to load."""
    is_image = re.search(r"!\[[^\n]*\]\(", shown) or "<img" in shown.lower()
    return not is_image and images(shown) == []


@pytest.mark.parametrize("to_dialect", DIALECTS)
@pytest.mark.parametrize(
    "text",
    [
        "ok !![p](u)",
        "![p](u)\n\n" + ">" * 25 + " x",
        "[" * 20 + "![p](u)",
        "![" * 3000 + "p](u)",
        "\\!\\[p](u)",
        "![x][r] ![r]\n\n[r]: u",
        "`![p](u)",
        "`<img src=u>` \\<IMG src=u>\n\n    <img src=u>",
    ],
)
def test_no_image_is_left_however_it_is_written(to_dialect: Callable[[str], str], text: str) -> None:
    shown = to_dialect(text)
    assert is_inert(shown)
    assert to_dialect is not to_dingtalk or "<" not in shown.replace("<\u200b", "")
    assert images(to_card(text)) == []


@given(
    pieces=st.lists(
        st.sampled_from(
            ["!", "[", "](u)", "![p](u)", "![x][r]", "[r]: u\n", "<img src=u>", "<IMG", "> " * 25]
        )
        | st.sampled_from(
            ["\\", "`", "```", "*", "a", " ", "    ", "\n", "\n\n", "- ", "|", "|-|-|\n", "[" * 20]
        ),
        max_size=20,
    )
)
def test_nothing_is_loaded_without_a_click_whatever_the_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert all(is_inert(to_dialect(text)) for to_dialect in DIALECTS)


def test_what_is_nested_beyond_all_reason_stays_as_it_is() -> None:
    assert to_wecom_app("> " * 25 + "字") == "> " * 25 + "字"


HOSTILE = [
    "![" * 50_000,
    "[" * 100_000,
    "*a_" * 30_000,
    ("- > " * 4 + "a\n") * 5500,
    "<http://a>" * 9999,
]
HOSTILE += [
    "a\n=\n" * 25_000,
    "|" + "a|" * 100 + "\n|" + "-|" * 100 + "\nx" * 650,
    "|" * 9_000 + "\n|" + "-|" * 9_000,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_costs_no_more_than_its_steps_and_can_be_read(text: str) -> None:
    """The parsers do no more than this for any text, so the event loop goes on."""
    looks = 0

    def look(*place: object) -> bool:
        nonlocal looks
        looks += 1
        return False

    parser = bounded(MarkdownIt("commonmark").enable("table"))
    parser.block.ruler.push("look", look, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    parser.inline.ruler.push("look", look)
    assert parsed(parser, text) is None and looks <= STEPS[1]
    assert all(words(to_dialect(f"字{text}字")) == "字字" for to_dialect in DIALECTS)


def test_a_long_answer_is_no_hostile_text() -> None:
    text = "A sentence with **bold** words, `code` and [a link](u). And some more of it. " * 3
    table = "| a | b | c |\n|---|---|---|\n" + "| 1 | 2 | 3 |\n" * 10
    text = f"## Title\n\n{text}\n\n- one\n- two\n  - three\n\n{table}\n```py\n" + "x = [1]\n" * 40 + "```\n\n"
    text *= 30
    assert len(text) > 20_000 and "[a link](u)" in to_dingtalk(text) and "```" not in to_dingtalk(text)
