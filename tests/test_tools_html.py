"""HTML as readable text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw.tools.builtins.html_text import MAX_TEXT, html_to_text

PAGE = """<!DOCTYPE html><html><head><title>A page</title>
<style>p { color: red }</style><script>if (a < b && "</p>") alert(1)</script></head>
<body><!-- <p>hidden</p> --><h1>Hello &amp; 你好</h1>
<p>One
   two <b>three</b>,<br>four.</p>
<ul><li>first<li>second <a href="/x?a=1&amp;b=2">link</a></ul>
<svg><text>drawn</text></svg><svg/>
<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>
<pre>  kept
    as it is</pre>
<img alt="a > b" src="x">end</body></html>"""


def test_a_page_reads_like_a_text() -> None:
    assert html_to_text(PAGE, "https://example.com/dir/") == (
        "A page\n\n# Hello & 你好\n\nOne two three,\nfour.\n\n- first\n- second"
        " [link](https://example.com/x?a=1&b=2)\n\na b\nc\n\n  kept\n    as it is\nend"
    )


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("a < b and c > d", "a < b and c > d"),
        ("x<", "x<"),
        ("x<b", "x"),
        ("x<!-- never closed", "x"),
        ("x<script>never closed", "x"),
        ("x<SCRIPT>y</Script >z", "xz"),
        ("<?xml version='1'?><p>x", "x"),
        ('<a title="1 > 2" href=y>z</a>', "[z](http://h/y)"),
        ('x<b title=">y>z', "xy>z"),
        ("<a href='y'>z", "[z](http://h/y)"),
        ("<a href=y>1<a href=z>2</a>", "[1](http://h/y)[2](http://h/z)"),
        ("<a href='#top'>z</a>", "z"),
        ("<a href='javascript:x()'>z</a>", "z"),
        ("<a href='http://[half'>z</a>", "z"),
        ("<a name=n>z</a>", "z"),
        ("<a href=y><img></a>", ""),
        (f"<a href='{'y' * 600}'>z</a>", "z"),
        ("<a href=y><h2>z</h2></a>", "[z](http://h/y)"),
        ("</pre>a  b", "a b"),
        ("<p>a</p><p></p><p></p><p>b</p>", "a\n\nb"),
        ("&lt;b&gt; &#x4f60; &unknown;", "<b> 你 &unknown;"),
    ],
)
def test_broken_and_odd_pages_are_read_too(page: str, text: str) -> None:
    assert html_to_text(page, "http://h/") == text


@given(
    st.text(max_size=80)
    | st.lists(
        st.sampled_from(
            ["<", ">", "</", "<!--", "-->", "<a href=", '"', "'", "<script>", "<pre>", "x", " ", "&"]
        ),
        max_size=40,
    ).map("".join)
)
def test_any_text_is_read(page: str) -> None:
    assert "\n\n\n" not in html_to_text(page, "http://h/")


@pytest.mark.parametrize(
    "piece",
    [
        "<",
        "</",
        "<!",
        "<!--",
        "<a",
        '<a "',
        '<a ">',
        '" <a ">',
        "<a '>",
        "<script",
        "<script>",
        "</script",
        "<pre> ",
        "&",
        "&#",
        "<a href=x>",
        "<p> ",
    ],
)
def test_a_hostile_page_takes_time_in_proportion_to_its_size(piece: str) -> None:
    """With quadratic work these would run into the time limit of the tests."""
    assert len(html_to_text(piece * (600_000 // len(piece)), "http://h/")) <= MAX_TEXT
