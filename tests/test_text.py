"""The tokeniser, the splitter, the width, the token estimate and front matter."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from miniclaw import tokens
from miniclaw.front_matter import FrontMatter, FrontMatterProblem, parse_front_matter
from miniclaw.text import (
    display_width,
    fold,
    split_text,
    tokenize,
)
from miniclaw.tokens import estimate_tokens

MARKS = "a" + "\u0315" * 40_000 + "\u0300" * 40_000
"""Normalising this in one piece takes many seconds."""


def utf8(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


# --- tokenize ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("runs", "running"),
        ("planned", "planning"),
        ("cities", "city"),
        ("likes", "liked"),
        ("quickly", "quick"),
        ("Alice's", "ALICE"),
        ("ＡＢＣ１２３", "abc123"),
        ("café", "cafe\u0301"),
    ],
)
def test_forms_of_a_word_give_the_same_term(one: str, other: str) -> None:
    assert tokenize(one) == tokenize(other) != []


def test_words_that_only_look_alike_stay_apart() -> None:
    assert len({*tokenize("bus"), *tokenize("sing"), *tokenize("bed"), *tokenize("class")}) == 4


def test_stop_words_give_no_term() -> None:
    assert tokenize("What is the colour of their dog?") == ["colour", "dog"]


def test_chinese_gives_characters_and_pairs_without_blanks() -> None:
    assert tokenize("我喜欢猫") == ["喜", "欢", "猫", "我喜", "喜欢", "欢猫"]


def test_scripts_in_one_run_are_told_apart() -> None:
    assert tokenize("用git提交v2") == ["用", "git", "提", "交", "提交", "v2"]


def test_a_word_of_endless_length_is_one_short_term() -> None:
    assert [len(term) for term in tokenize("x" * 100_000)] == [64]


def test_folding_is_linear_in_combining_marks() -> None:
    """Only the time limit of the test run can fail here: in one piece this would not end."""
    assert len(fold(MARKS * 5)) > 0


@given(st.text())
def test_a_text_and_its_decomposed_form_give_the_same_terms(text: str) -> None:
    assert tokenize(unicodedata.normalize("NFD", text)) == tokenize(text)


@given(st.text(max_size=3000), st.text(alphabet="é中ab \u0301", max_size=3000))
def test_folding_in_pieces_is_folding_the_whole(text: str, other: str) -> None:
    for whole in (text, other, text + " " * 1100 + other):
        if all(len(part) < 1024 for part in whole.split(" ")):
            assert fold(whole) == unicodedata.normalize("NFKC", whole).lower()


# --- width and splitting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "columns"),
    [("abc", 3), ("中文", 4), ("e\u0301", 1), ("ｱ", 1), ("Ａ", 2), ("🙂", 2), ("\x1b\t", 0), ("", 0)],
)
def test_width_is_that_of_a_terminal(text: str, columns: int) -> None:
    assert display_width(text) == columns


@given(st.text(), st.integers(1, 50))
def test_parts_join_to_the_text_and_keep_the_limit(text: str, limit: int) -> None:
    parts = split_text(text, limit)
    assert "".join(parts) == text
    assert all(len(part) <= limit for part in parts)
    assert parts == [""] or all(parts)


@given(st.text(alphabet=st.characters(codec="utf-8")), st.integers(4, 50))
@example("😀" * 30, 4)
def test_parts_keep_a_limit_in_bytes_without_cutting_a_character(text: str, limit: int) -> None:
    parts = split_text(text, limit, measure=utf8)
    assert "".join(parts) == text
    assert all(utf8(part) <= limit for part in parts)


@given(st.text(alphabet="中a \u0301\n", max_size=200), st.integers(2, 20))
def test_parts_keep_a_limit_in_columns(text: str, limit: int) -> None:
    parts = split_text(text, limit, measure=display_width)
    assert "".join(parts) == text
    assert all(display_width(part) <= limit for part in parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("first one.\n\nsecond\nhere", ["first one.\n\n", "second\nhere"]),
        ("a line here\nnext. And more", ["a line here\n", "next. And more"]),
        ("It is so. Is it so?", ["It is so. ", "Is it so?"]),
        ("今天天气很好。我们去公园玩吧", ["今天天气很好。", "我们去公园玩吧"]),
        ("plain words only", ["plain words ", "only"]),
        ("unbroken" * 3, ["unbrokenunbrok", "enunbroken"]),
    ],
)
def test_a_part_ends_where_a_reader_would_pause(text: str, parts: list[str]) -> None:
    assert split_text(text, 14 if text.isascii() else 9) == parts


def test_an_early_pause_does_not_make_a_tiny_part() -> None:
    assert len(split_text("a.\n\n" + "word " * 20, 60)[0]) > 30
    assert [len(part) for part in split_text("see " + "x" * 100, 60)] == [60, 44]
    assert split_text("x" * 25 + " " + "y" * 50, 60)[0] == "x" * 25 + " "


def test_a_part_takes_all_that_fits_under_any_measure() -> None:
    assert [len(part) for part in split_text("a" * 150, 10, measure=lambda part: len(part) // 10)] == [
        109,
        41,
    ]


def test_a_limit_below_one_character_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        split_text("中", 2, measure=utf8)
    with pytest.raises(ValueError, match="too small"):
        split_text("a", 0)


@pytest.mark.parametrize("size", [len, lambda part: part.count("a")])
@pytest.mark.parametrize("text", ["a" * 300_000, " " * 300_000, "\n" * 300_000, "a. " * 100_000])
def test_hostile_text_takes_few_measurements(text: str, size: Callable[[str], int]) -> None:
    """Counting what is measured shows the cost where a clock would not: linear up to a logarithm."""
    measured = 0

    def measure(part: str) -> int:
        nonlocal measured
        measured += len(part)
        return size(part)

    split_text(text, 1000, measure=measure)
    assert measured < 30 * len(text)


# --- estimate_tokens --------------------------------------------------------------------------------------

COUNTED: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "data" / "tokens.json").read_text(encoding="utf-8")
)
"""Texts and their exact counts (`o200k_base`), made once with a real tokeniser."""


@pytest.mark.parametrize("kind", ["english", "chinese", "code", "json"])
def test_the_estimate_is_within_fifteen_percent_of_the_exact_count(kind: str) -> None:
    for sample in COUNTED[kind]:
        assert estimate_tokens(sample["text"]) == pytest.approx(sample["tokens"], rel=0.15)


def test_base64_costs_more_than_words_do_and_a_name_with_capitals_does_not() -> None:
    sample = base64.b64encode(random.Random(1).randbytes(700)).decode()
    lines = "\n".join(sample[start : start + 76] for start in range(0, len(sample), 76))
    assert estimate_tokens(sample) == pytest.approx(640, rel=0.15)  # by `o200k_base`
    assert estimate_tokens(lines) == pytest.approx(651, rel=0.15)
    assert estimate_tokens("someVeryLongCamelCaseIdentifierNumber1ThatGoesOnAndOn2AndOnForever" * 2) < 50
    assert estimate_tokens((lines + "\n") * 1000) == pytest.approx(651_000, rel=0.15)


def test_tiktoken_counts_where_its_vocabulary_is_at_hand_and_is_not_even_imported_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hashlib.sha1(
        b"https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
    ).hexdigest()
    (tmp_path / "tiktoken.py").write_text(
        "class Encoding:\n def encode_ordinary(self, text): return [0] * 1234\n"
        "def get_encoding(name):\n assert name == 'o200k_base'\n return Encoding()\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    found = []
    for _ in range(2):
        tokens._exact.cache_clear()
        found.append(
            (estimate_tokens("one two"), estimate_tokens("a " * 20_001) == 1234, "tiktoken" in sys.modules)
        )
        (tmp_path / name).touch()
    monkeypatch.delitem(sys.modules, "tiktoken")
    tokens._exact.cache_clear()
    assert found == [(2, False, False), (1234, False, True)]


PUBLISHED = [
    # As printed when GPT-4o was announced, and in the documentation of its tokeniser.
    ("Hello, my name is GPT-4o. I'm a new type of language model, it's nice to meet you!", 27),
    ("你好，我的名字是GPT-4o。我是一种新型的语言模型，很高兴见到你!", 24),
    ("antidisestablishmentarianism", 6),
    ("2 + 2 = 4", 7),
]


@pytest.mark.parametrize(("text", "tokens"), PUBLISHED)
def test_estimates_are_near_published_counts(text: str, tokens: int) -> None:
    assert abs(estimate_tokens(text) - tokens) <= max(1, 0.15 * tokens)


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        # A few common words are a token each, with the blank before them.
        ("the cat sat on the mat and looked at the dog " * 10, 100, 125),
        ("今天我们讨论了下一个季度的工作计划和预算安排" * 10, 111, 149),
        ("def add(first, second):\n    return first + second\n" * 10, 120, 190),
        ('{"id": 12345, "name": "Alice", "tags": ["a", "b"]}\n' * 10, 210, 300),
        ("0123456789" * 30, 95, 105),
    ],
)
def test_estimates_fit_the_kind_of_text(text: str, least: int, most: int) -> None:
    assert least <= estimate_tokens(text) <= most


def test_no_text_is_no_token_and_any_text_at_least_one() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens(" ") == 1
    assert estimate_tokens("\ud800") >= 1


@given(st.text())
def test_an_estimate_is_within_what_any_encoder_could_give(text: str) -> None:
    assert 0 <= estimate_tokens(text) <= 2 * utf8(text) + 1


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cc"]))))
def test_lines_together_cost_no_more_than_each_alone(lines: list[str]) -> None:
    """A budget that is filled line by line relies on it."""
    whole = "".join(f"- {line}\n" for line in lines)
    assert estimate_tokens(whole) <= sum(estimate_tokens(f"- {line}\n") for line in lines)


# --- front matter -----------------------------------------------------------------------------------------


def parsed(text: str) -> FrontMatter:
    result = parse_front_matter(text)
    assert isinstance(result, FrontMatter), result
    return result


def problem(text: str) -> FrontMatterProblem:
    result = parse_front_matter(text)
    assert isinstance(result, FrontMatterProblem), result
    return result


def test_front_matter_is_taken_as_text() -> None:
    result = parsed("---\nversion: 1.10\ndone: yes\non: 2026-01-31\nlist: [a, 2]\n---\nbody\n")
    assert result.fields == {"version": "1.10", "done": "yes", "on": "2026-01-31", "list": ["a", "2"]}
    assert result.body == "body\n"


def test_a_byte_order_mark_and_crlf_are_accepted() -> None:
    assert parsed("\ufeff---\r\na: b\r\n---\r\none\r\ntwo\r\n").body == "one\ntwo\n"


def test_a_rule_in_the_body_stays_there() -> None:
    assert parsed("---\na: b\n---\none\n---\ntwo").body == "one\n---\ntwo"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "does not begin"),
        ("# Title\n---\na: b\n---\n", 1, "does not begin"),
        ("---\na: b\n", 1, "no closing line"),
        ("---\n---\nbody", 2, "key: value"),
        ("---\n- a\n---\n", 2, "key: value"),
        ("---\na: b\nc: d: e\n---\n", 3, "not YAML"),
        ("---\na: [b\n---\n", 3, "not YAML"),
        ("---\na: \x01\n---\n", 2, "control character"),
        ("---\na: " + "[" * 900 + "]" * 900 + "\n---\n", 2, "nested too deeply"),
    ],
)
def test_broken_front_matter_is_named_with_its_line(text: str, line: int, reason: str) -> None:
    found = problem(text)
    assert (found.line, reason in found.reason) == (line, True), found


@given(st.text())
@example("a: b")
@example("a: b\n---\nbody")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """What is taken apart can be put together again; what is refused is so at a line of the file."""
    file = "---\n" + text + "\n---\n"
    found = parse_front_matter(file)
    if isinstance(found, FrontMatter):
        head = f"---\n{found.head}"
        assert file.startswith(head) and file.endswith(found.body)
        assert file[len(head) : len(file) - len(found.body)].strip() == "---"
        assert all(isinstance(key, str) for key in found.fields)
    else:
        assert 1 <= found.line <= len(file.splitlines()) + 1 and found.reason
