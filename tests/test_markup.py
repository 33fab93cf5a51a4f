"""Replies are cut where the platform demands it, and every part is sound Markdown by itself."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from miniclaw.channel.markup import parts_of, scanned, split_markdown

BLOCKS = MarkdownIt("commonmark")
LINES = st.sampled_from(
    [
        "```python",
        "```",
        "~~~",
        "text",
        "   ```",
        "````",
        "",
        "a longer line of words. " * 8,
        "汉字" * 60,
        "x" * 300,
        "- item",
        "- ```sh",
        "  ```",
        "  in the item",
        "     ```",
        "> quoted",
        "> ```",
        "> > - ~~~ x",
    ]
)


def in_bytes(text: str) -> int:
    return len(text.encode())


def is_open(text: str) -> bool:
    """Whether a fence has no end, by the rules of CommonMark 0.31, section 4.5."""
    opened = ""
    for line in text.split("\n"):
        if (found := re.fullmatch(r" {0,3}(`{3,}|~{3,})(.*)", line)) is None:
            continue
        if not opened:
            opened = "" if found[1][0] == "`" and "`" in found[2] else found[1]
        elif found[1].startswith(opened) and not found[2].strip():
            opened = ""
    return bool(opened)


@given(lines=st.lists(LINES, max_size=60), limit=st.integers(400, 900), by_bytes=st.booleans())
@example(lines=["```python", *["x = 1"] * 200, "```"], limit=400, by_bytes=False)
def test_no_part_is_too_long_and_nothing_is_lost(lines: list[str], limit: int, by_bytes: bool) -> None:
    text = "\n".join(lines)
    measure = in_bytes if by_bytes else len
    parts = parts_of(text, limit, measure=measure)
    assert "".join(body for _, body, _ in parts) == text
    assert all(measure("".join(part)) <= limit for part in parts)
    assert all(not head or not head.rpartition("\n")[2].strip("> ") for head, _, _ in parts)
    assert all(set(tail) <= set("\n`~> ") for _, _, tail in parts)
    shown = ["".join(part) for part in parts]
    if not any(line.startswith(("-", ">")) for line in lines):
        # HKUDS/nanobot#4250: a long answer was cut inside a code block, and the rest of it was no code any more.
        assert [is_open(part) for part in shown] == [False] * (len(shown) - 1) + [is_open(text)]
    assert split_markdown(text, limit, measure=measure) == ["".join(part) for part in parts]


def test_a_code_block_that_is_cut_is_closed_and_opened_again_with_its_language() -> None:
    code = "\n".join(f"line_{number} = {number}" for number in range(100))
    parts = split_markdown(f"Here:\n\n```python\n{code}\n```\nDone.", 500)
    assert len(parts) > 2
    for part in parts:
        assert part.count("```") == 2
    assert all(part.startswith("```python\n") for part in parts[1:])
    assert all(part.endswith("\n```") for part in parts[:-1])
    assert "\n".join(re.findall(r"^line_.*$", "\n".join(parts), re.MULTILINE)) == code


@pytest.mark.parametrize(
    ("opening", "prefix"),
    [
        ("- ```python", "  "),
        ("- - 1. ```python", "       "),
        ("> ```python", "> "),
        (">>```python", ">>"),
        ("> 10. ```python", ">     "),
        ("1. item\n   ```python", "   "),
        ("- a\n\n  - b\n\n    ```python", "    "),
        ("100. ```python", "     "),
        ("- a\n  - b\n    - c\n      ```python", "      "),
        ("- a\n  - b\n    > ```python", "    > "),
    ],
)
@pytest.mark.parametrize("ending", ["", "ends"])
def test_a_code_block_in_a_list_or_a_quotation_is_cut_with_its_prefix(
    opening: str, prefix: str, ending: str
) -> None:
    code = [f"line_{number} = {number} " * 3 for number in range(60)] + ["x" * 900]
    text = "\n".join(
        [opening, *(prefix + line for line in code), *([f"{prefix}```", "", ending] * bool(ending))]
    )
    parts = split_markdown(text, 500)
    assert len(parts) > 6
    found = ""
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        fences = [token for token in BLOCKS.parse(part) if token.type == "fence"]
        assert [fence.info for fence in fences] == ["python"]
        # Cut in the middle of a line, that goes on in the next part.
        is_cut = not is_last and fences[0].content.endswith("x\n")
        found += fences[0].content.removesuffix("\n") if is_cut else fences[0].content
        assert is_last or part.splitlines()[-1] == prefix + "```"
    # A long line may be cut behind its prefix, which leaves an empty one before it.
    assert list(filter(None, found.splitlines())) == code
    assert "".join(body for _, body, _ in parts_of(text, 500)) == text


@pytest.mark.parametrize(
    ("lists", "again"),
    [
        ("", "1. step\n   - on Linux\n\n     ```sh\n     run\n     ```\n\n"),
        ("- a\n  - b\n    - c\n\n", "      ```sh\n      run\n      ```\n\n"),
        ("- a\n  - b\n\n", "    - so\n\n      ```sh\n      run\n      ```\n\n"),
        ("1. a\n\n", "   so\n\n     ```sh\n     run\n     ```\n\n"),
        ("> 1. a\n>\n", ">      ```sh\n>      run\n>      ```\n>\n"),
        ("- a\n  - b\n\n", "    > ```sh\n    > run\n    > ```\n\n"),
    ],
)
@pytest.mark.parametrize("limit", [400, 417, 431, 450])
def test_a_part_that_begins_before_a_code_block_of_a_list_shows_it_as_code(
    lists: str, again: str, limit: int
) -> None:
    parts = split_markdown(lists + again * 40, limit)
    blocks = [token for part in parts for token in BLOCKS.parse(part) if token.content]
    assert len(parts) > 3 and all(len(part) <= limit for part in parts)
    assert "".join(token.content for token in blocks if token.type == "fence") == "run\n" * 40
    assert not any(token.type == "code_block" for token in blocks)


@pytest.mark.parametrize("prefix", ["", "> ", "  "])
def test_no_empty_code_block_is_left_where_a_cut_falls_on_the_end_of_one(prefix: str) -> None:
    code = "\n".join(f"{prefix}line {number}" for number in range(60))
    text = f"{'- item' * (prefix == '  ')}\n{prefix}```\n{code}\n{prefix}```\n\n{'and more words. ' * 60}"
    for limit in range(400, 700):
        for part in split_markdown(text, limit):
            assert len(part) <= limit
            assert all(token.content.strip() for token in BLOCKS.parse(part) if token.type == "fence")


@pytest.mark.parametrize(("first", "more"), [("- ", "  "), ("1. ", "   "), ("> ", "> ")])
def test_what_follows_a_list_whose_code_block_was_never_closed_is_no_code(first: str, more: str) -> None:
    code = "".join(f"{more}line {number}\n" for number in range(60))
    parts = split_markdown(f"{first}```py\n{code}\nbehind it\n", 400)
    assert len(parts) > 2 and max(map(len, parts)) <= 400
    tokens = [token for part in parts for token in MarkdownIt().parse(part)]
    fenced = [token.content for token in tokens if token.type == "fence"]
    assert "".join(fenced).split() == [word for n in range(60) for word in ("line", str(n))]


def test_a_block_that_is_too_deep_to_be_named_again_is_cut_as_it_is() -> None:
    text = "> " * 25 + "```\n" + ("> " * 25 + "code\n") * 50
    assert "".join(split_markdown(text, 400)) == text


def test_a_short_text_is_one_part_as_it_is() -> None:
    assert split_markdown("```\nopen", 400) == ["```\nopen"]
    assert split_markdown("", 400) == [""]


@pytest.mark.parametrize(
    "hostile",
    ["> ```\n" * 15_000, "- " * 30_000, "- ```\n" * 12_000, "> " * 30_000, "[a]: <" * 10_000]
    + ["```" * 20_000, "`" * 60_000, "~~~\n" * 20_000, "```" + "x" * 60_000, "\n" * 60_000],
)
def test_hostile_texts_are_split_in_linear_steps(hostile: str) -> None:
    parts = split_markdown(hostile, 4000)
    assert all(len(part) <= 4000 for part in parts)


PIECES = st.sampled_from(
    [
        "Some words, `code` and **more** of them.",
        "# A head",
        "- an item\n- another\n  that goes on\n  - one below",
        "1. first\n2. second",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "> quoted\n> words",
        "```python\nx = 1\n\n- ```\n> ```\n    ```\n# no head\n```",
        "~~~ text\n```\n~~~~",
        "- item\n\n  ```sh\n  ls\n\n  ls\n  ```\n- next",
        "1. item\n   - ```js\n     f()\n     ```\n   - last",
        "> ```c\n> int x;\n>\n> ```\n> said",
        "> ```\n> open to the end of the quotation",
        "- ```\n  open to the end of the list",
        "    ```\n    indented code",
        "``` no `fence\nwords",
    ]
)


@given(pieces=st.lists(PIECES, max_size=12))
def test_usual_markdown_has_the_same_fences_line_by_line_as_by_the_parser(pieces: list[str]) -> None:
    text = "\n\nThen:\n\n".join(pieces)
    tokens = [token for token in BLOCKS.parse(text) if token.type == "fence"]
    expected = [(*(token.map or ()), token.markup, token.info) for token in tokens]
    assert list(scanned(text.split("\n"))) == expected


@settings(max_examples=6)
@given(pieces=st.lists(PIECES, min_size=3, max_size=6, unique=True))
def test_a_code_block_of_a_long_usual_text_is_closed_and_opened_again(pieces: list[str]) -> None:
    before = "\n\n".join(pieces * (60_000 // len("".join(pieces))))
    code = "x = 1  # a line of code of usual length\n" * 900
    parts = split_markdown(f"{before}\n\nThen:\n\n```python\n{code}```\n", 11_000)
    last = [part for part in parts if "a line of code of usual length" in part]
    assert len(last) > 2 and not any(map(is_open, last))
    assert all(part.startswith("```python\n") for part in last[1:])
