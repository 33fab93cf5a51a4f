"""The Markdown renderer: what becomes HTML, what never does, and that streaming changes nothing."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from miniclaw.gateway import live, markdown
from miniclaw.gateway.live import BlockRenderer
from miniclaw.gateway.markdown import render_markdown

ALLOWED_ATTRIBUTES = {"href", "title", "rel", "target", "class", "align", "start", "data-lang"}

LINES = st.sampled_from(
    [
        "",
        "text",
        "more *text* here",
        "# heading",
        "# head | line",
        "--- | ---",
        "---",
        "===",
        "a | b",
        "- item",
        "- [x] done",
        "  - nested",
        "    deep or code",
        "\ttab",
        "1. one",
        "2. two",
        "10) ten",
        "> quote",
        "> ```",
        "```",
        "``` py | x",
        "```python",
        "~~~",
        "~~~~",
        "    ```",
        "***",
        "- - -",
        "def f(): return '<b>'",
        "[a](https://example.org)",
        "![i](https://example.org/i.png)",
        "[l][ref] https://example.org/x).",
        "[ref]: https://example.org/target",
        '"title"',
        "<script>alert(1)</script>",
        "[x](javascript:alert(1))",
        "中文，见https://example.org。",
        "$$",
        "  $$ x = *1*",
        "$$ is a word",
        "\\[",
        "= b \\]",
        "\\[ a *b* \\] $x*y*z$ \\(c*d*e\\)",
        "> \\begin{a} \\begin{a}",
        "\\end{a}",
    ]
)
LINE_ENDS = st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"])
DOCUMENTS = st.lists(st.tuples(LINES, LINE_ENDS), max_size=14).map(lambda x: "".join(map("".join, x)))
TEXTS = DOCUMENTS | st.text(max_size=80) | st.text(alphabet="#>-*_`~|[]():!<&\\ \n\tax1.\"'/${}", max_size=80)
CUTS = st.lists(st.integers(0, 400), max_size=20)


class Collector(HTMLParser):
    """Every tag and attribute that a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Collector:
    collector = Collector()
    collector.feed(html)
    collector.close()
    return collector


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[a:b] for a, b in zip(places, places[1:], strict=False)]


def stream(deltas: list[str]) -> list[str]:
    renderer = BlockRenderer()
    found = [block for delta in deltas for block in renderer.feed(delta)]
    found += renderer.finish()
    assert [index for index, _, _ in found] == list(range(len(found)))
    assert [html for _, html, _ in found] == renderer.blocks()
    assert renderer.rest == ""
    return renderer.blocks()


@given(TEXTS, CUTS)
def test_however_a_text_is_cut_into_deltas_the_blocks_are_the_same(text: str, cuts: list[int]) -> None:
    assert stream(pieces(text, cuts)) == stream([text])


@given(TEXTS.filter(lambda text: "]:" not in text), CUTS)
def test_streamed_blocks_joined_equal_the_whole_text_rendered_at_once(text: str, cuts: list[int]) -> None:
    assert "".join(stream(pieces(text, cuts))) == render_markdown(text)


@given(TEXTS)
def test_output_holds_only_allowed_attributes_and_addresses(text: str) -> None:
    for html in (render_markdown(text), "".join(stream(pieces(text, [1, 5, 9])))):
        for tag, attributes in read(html).seen:
            assert tag not in ("script", "style", "img", "iframe", "svg", "input", "form")
            assert set(attributes) <= ALLOWED_ATTRIBUTES
            if tag == "a":
                assert str(attributes["href"]).lower().startswith(("http://", "https://", "mailto:"))
                assert (attributes["rel"], attributes["target"]) == ("noopener noreferrer", "_blank")


@given(TEXTS, CUTS)
def test_the_rest_is_always_the_text_behind_the_last_finished_block(text: str, cuts: list[int]) -> None:
    renderer = BlockRenderer()
    shown = ""
    for delta in pieces(text, cuts):
        shown += delta
        finished = renderer.feed(delta)
        if finished:
            assert all(rest == "" for _, _, rest in finished[:-1])
            shown = finished[-1][2]
        assert renderer.rest.replace("\r", "\n").endswith(shown.replace("\r\n", "\n").replace("\r", "\n"))


@pytest.mark.parametrize(
    "source",
    [
        "[x](javascript:alert(1))",
        "[x](&#106;avascript:alert(1))",
        "[x](  JaVaScRiPt:alert(1))",
        "[x](java\nscript:alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "[x](vbscript:x)",
        "[x](//evil.example/x)",
        "[x](/api/sessions)",
        "![x](javascript:alert(1))",
        "![x](http:alert)",
        "<javascript:alert(1)>",
        "[x]: javascript:alert(1)\n\n[x]",
        "<img src=x onerror=alert(1)>",
        "<a href='https://a.b' onclick='x()'>y</a>",
        '```"onload=x\ncode\n```',
        "`</code><script>alert(1)</script>`",
        "| <svg onload=x> |\n| --- |\n| <iframe src=y> |",
        "$$\n</pre><script>alert(1)</script>\n$$",
        "$</span><img src=x onerror=alert(1)>$ \\([x](javascript:alert(1))\\)",
    ],
)
def test_an_attack_stays_text(source: str) -> None:
    for tag, attributes in read(render_markdown(source)).seen:
        assert tag not in ("script", "img", "svg", "iframe")
        assert not [name for name in attributes if name.startswith("on")]
        assert "script" not in str(attributes.get("href", "")).lower()
        assert not str(attributes.get("href", "https:")).startswith(("/", "data"))


def test_raw_html_is_shown_as_it_was_written() -> None:
    assert (
        render_markdown("<b>x</b> &amp; <!-- y -->") == "<p>&lt;b&gt;x&lt;/b&gt; &amp; &lt;!-- y --&gt;</p>\n"
    )


def test_a_known_language_is_coloured_with_classes_and_an_unknown_one_is_plain() -> None:
    known = render_markdown("```python\ndef f(): pass\n```\n")
    assert known.startswith('<pre data-lang="python"><code><span class="k">def</span>')
    assert "style=" not in known
    unknown = render_markdown("```nolang\ndef f(): <b>\n```\n")
    assert unknown.strip() == '<pre data-lang="nolang"><code>def f(): &lt;b&gt;\n</code></pre>'


def test_highlighting_changes_no_character_of_the_code() -> None:
    code = "\n\n  def f():\n\treturn '中文 <&>'  \n\n"
    assert read(render_markdown(f"```python\n{code}```")).text.strip("\n") == code.strip("\n")
    assert read(render_markdown(f"```python\n{code}```")).text.startswith("\n\n  def")


def test_a_huge_code_block_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "HIGHLIGHT_LIMIT", 20)
    assert "<span" not in render_markdown("```python\nprint('a long enough line')\n```")
    assert "<span" in render_markdown("```python\nprint(1)\n```")


def test_tables_keep_their_alignment_without_styles() -> None:
    html = render_markdown("| a | b | c |\n| --: | :-: | --- |\n| 1 | 2 | 3 |\n")
    assert '<th align="right">a</th>' in html
    assert '<td align="center">2</td>' in html
    assert "<td>3</td>" in html
    assert "style" not in html


def test_task_lists_show_boxes_only_at_the_start_of_items() -> None:
    html = render_markdown("- [ ] open\n- [x] done\n- [y] no\n\n[x] neither\n")
    assert '<li><span class="task">☐</span> open</li>' in html
    assert '<li><span class="task">☑</span> done</li>' in html
    assert html.count('class="task"') == 2


def test_images_become_links_and_a_linked_image_keeps_the_outer_link() -> None:
    assert 'href="https://a.example/i.png"' in render_markdown("![pic](https://a.example/i.png)")
    assert ">https://a.example/i.png</a>" in render_markdown("![](https://a.example/i.png)")
    linked = read(render_markdown("[![badge](https://a.example/i.png)](https://b.example)"))
    assert [attributes.get("href") for tag, attributes in linked.seen if tag == "a"] == ["https://b.example"]
    assert linked.text.strip() == "badge"


@pytest.mark.parametrize(
    ("source", "address"),
    [
        ("see https://example.org/a_b_c.", "https://example.org/a_b_c"),
        ("(https://example.org/x_(y))", "https://example.org/x_(y)"),
        ("见https://example.org/路", "https://example.org/"),
        ("http://example.org?a=1&b=2!", "http://example.org?a=1&b=2"),
        ("**https://example.org**", "https://example.org"),
        ("https://example.org/" + ")" * 50_000, "https://example.org/"),
    ],
)
def test_a_bare_url_becomes_a_link_without_the_punctuation_behind_it(source: str, address: str) -> None:
    assert [a.get("href") for tag, a in read(render_markdown(source)).seen if tag == "a"] == [address]


def test_bare_urls_in_code_and_in_links_are_left_alone() -> None:
    assert "<a" not in render_markdown("`https://example.org` and xhttps://example.org and https://.")
    assert render_markdown("[https://a.example](https://b.example)").count("<a") == 1


PARTED = re.compile(r"\\\]|\\\)|```|~~~|\\$|^[\d\s-]*$")
BODIES = st.text(alphabet="ab1*_^&=+->#|{}[]()<` \n\\!~", min_size=1, max_size=60).filter(
    lambda body: body == body.strip() and "\n\n" not in "".join(body.split(" ")) and not PARTED.search(body)
)


@given(
    st.sampled_from(
        [("$$\n", "\n$$"), ("\\[\n", "\n\\]"), ("\\begin{x}\n", "\n\\end{x}"), ("text:\n$$\n", "\n$$.")]
    ),
    BODIES,
    CUTS,
)
def test_a_formula_stays_as_it_was_written_whole_and_streamed(
    marks: tuple[str, str], body: str, cuts: list[int]
) -> None:
    source = f"{marks[0]}{body}{marks[1]}"
    for html in (render_markdown(source), "".join(stream(pieces(source, cuts)))):
        assert source in read(html).text
    inline = body.replace("\n", " ")
    for opening, closing in (("\\(", "\\)"), ("$$", "$$"), ("$x^", "$")):
        if opening != "\\(" and ("`" in body or opening == "$$" and re.search(r"\]\(|\*\*|[*(（\[]$", body)):
            continue  # code binds tighter, and so do links and strong text
        assert (
            f"{opening}{inline}{closing}"
            in read(render_markdown(f"see {opening}{inline}{closing}, *x*")).text
        )


@pytest.mark.parametrize(
    ("before", "formula", "behind"),
    [
        ("The formula is: ", "$$\n\\{a\\} \\\\ x*y*z\n$$", "\n*where* x is:\n- item *two*"),
        ("- *公式为*：", "$$\n\\{a\\} *b*c\n$$", "\n- *two*"),
        ("as $$x$$ *says*\n", "$$\n\\{a\\} x*y*z\n$$", "\n*two*"),
    ],
)
def test_a_formula_that_opens_behind_words_ends_where_it_says(before: str, formula: str, behind: str) -> None:
    source = before + (formula.replace("\n", "\n  ") if before.startswith("-") else formula) + behind
    for html in (render_markdown(source), "".join(stream(list(source)))):
        assert formula in read(html).text
        assert html.count("<em>") == 2


def test_money_paths_prompts_and_citations_are_no_formulas() -> None:
    for source in (
        "cost $5 and $6 *x*, $5 *or* 6$",
        "$HOME/bin:$PATH *x* ${A}/${B}",
        "$ ls\n$ *x*",
        "$$ is the PID of *x*",
        "\\[1\\] *x* \\[2, 3\\]",
        "\\[x] *y*",
        "`$x` *x* `$`",
        "**Revenue ($)** and **Cost ($)** *x*",
        "[Price ($)](https://a.example/) and [Cost ($)](https://b.example/) *x*",
        "用^和$匹配行首和行尾，例如`^abc$`。*x*",
        "$$ expands to the PID, e.g. `echo $$` *x*",
        "Total ($): **5**, tax ($): *6*",
        "- **ARR ($)**: 5, **MRR ($)**: 6, *x*",
        "$a **b** c$ *x*",
    ):
        html = render_markdown(source)
        assert "math" not in html and "<em>" in html
        assert html.count("<strong>") == source.count("**") // 2 and html.count("<a ") == source.count("](")


@pytest.mark.parametrize("part", ["$$\n", "\\[\n", "\\( ", "$x ", "$\\$", "\\begin{a}\n", "- $$\n", "$1 1 "])
def test_openings_without_an_end_cost_no_more_than_their_text(part: str) -> None:
    """Blocks above a cost are not parsed; a line of Python for each character would take minutes."""
    calls = 0

    def counted(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(counted)
    try:
        stream([part] * 400)
        few, calls = calls, 0
        stream([part] * 1_600)
    finally:
        sys.setprofile(None)
    assert calls < few * 8


def test_a_line_break_of_the_source_is_a_line_break_of_the_page() -> None:
    assert render_markdown("one\ntwo") == "<p>one<br>\ntwo</p>\n"


def test_a_paragraph_is_finished_by_the_blank_line_behind_it() -> None:
    renderer = BlockRenderer()
    assert renderer.feed("first\n") == []
    assert renderer.feed("\nsec") == [(0, "<p>first</p>\n", "\nsec")]
    assert renderer.feed("ond") == []
    assert renderer.rest == "\nsecond"
    assert renderer.blocks() == ["<p>first</p>\n"]
    assert renderer.finish() == [(1, "<p>second</p>\n", "")]


def test_a_list_is_finished_when_the_next_block_has_begun() -> None:
    renderer = BlockRenderer()
    assert renderer.feed("- one\n\n") == []
    assert renderer.feed("- two\n\n") == []
    ((index, html, rest),) = renderer.feed("behind\n")
    assert (index, html.count("<li>"), rest) == (0, 2, "behind\n")


@pytest.mark.parametrize("source", ["# head\n", "---\n", "```\ncode\n```\n", "~~~~\n```\n~~~~~ \n"])
def test_a_block_that_no_line_can_change_is_finished_at_once(source: str) -> None:
    renderer = BlockRenderer()
    finished = [block for line in source.splitlines(keepends=True) for block in renderer.feed(line)]
    assert finished == [(0, render_markdown(source), "")]


def test_a_heading_that_may_still_be_the_head_of_a_table_waits() -> None:
    renderer = BlockRenderer()
    assert renderer.feed("# a | b\n") == []
    renderer.feed("--- | ---\n")
    assert "".join(html for _, html, _ in renderer.finish()).startswith("<table>")


def test_a_reference_reaches_forward_but_not_back() -> None:
    blocks = stream(["[a]\n\n[a]: https://example.org\n\n", "[a]\n\n[a]\n\n", "[a]"])
    assert [("href" in block) for block in blocks] == [False, True, True, True]


@pytest.mark.parametrize("line", ["- item\n", "text\n", "> quote\n", "a | b\n", "    code\n"])
def test_scanning_costs_at_most_a_fixed_number_of_times_the_text(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    scanned = 0
    top_level = markdown.top_level

    def counting(source: str) -> object:
        nonlocal scanned
        scanned += len(source)
        return top_level(source)

    monkeypatch.setattr(live, "top_level", counting)
    renderer = BlockRenderer()
    for _ in range(300):
        renderer.feed(line)
    assert scanned <= live.SCAN_FACTOR * 300 * len(line)


def test_an_open_code_fence_is_not_scanned_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = BlockRenderer()
    renderer.feed("```python\nx = 1\n")
    with monkeypatch.context() as patch:
        patch.setattr(live, "top_level", None)
        for _ in range(50):
            assert renderer.feed("x = 1\n``\n    ```\n") == []
    assert [index for index, _, _ in renderer.feed("```\n")] == [0]


def test_importing_the_module_loads_no_heavy_package() -> None:
    code = (
        "import sys, miniclaw.gateway.markdown; "
        "sys.exit(bool({'markdown_it', 'pygments', 'nh3'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


@example("***\r", [])
@given(TEXTS, CUTS)
def test_blocks_that_cost_too_much_are_the_same_plain_text_streamed_and_at_once(
    text: str, cuts: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markdown, "BLOCK_COST", 3)
        patch.setattr(markdown, "TEXT_COST", 9)
        assert "".join(stream(pieces(text, cuts))) == render_markdown(text)


@pytest.mark.parametrize("part", ["**a*", "![", "[a](b", "x\n", "- a\n"])
def test_a_block_that_costs_too_much_is_plain_text_and_the_blocks_around_it_are_not(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    parsed: list[int] = []
    render = markdown.render

    def counting(source: str, env: dict[str, object]) -> str:
        parsed.append(len(source))
        return render(source, env)

    monkeypatch.setattr(markdown, "render", counting)
    dear = part * 2_000
    html = render_markdown(f"# *A*\n\n{dear}\n\n# *B*\n")
    assert sum(parsed) < 100
    assert html.startswith("<h1><em>A</em></h1>\n<p>") and html.endswith("<h1><em>B</em></h1>\n")
    assert dear.split() == read(html.removeprefix("<h1><em>A</em></h1>")).text.split()[:-1]


def test_the_blocks_of_a_text_are_parsed_only_up_to_a_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "TEXT_COST", 2_000)
    block = "*a* " * 200 + "\n\n"
    assert render_markdown(block * 20).count("<em>") == render_markdown(block * 40).count("<em>") > 0
    assert render_markdown("```\n" + "*\n" * 9_000 + "```\n").startswith("<pre>")
