"""Which texts are found for a question, in which order, and what removing one leaves."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.memory import memory_bank, recall
from miniclaw.memory.ranking import Ranking


def ranked(texts: dict[str, str], query: str, **given: Any) -> list[str]:
    ranking = Ranking()
    for name, text in texts.items():
        ranking.put(name, text, **given)
    return [name for name, _ in ranking.search(query, 10)]


def test_a_rare_word_tells_more_than_a_common_one() -> None:
    texts = {f"n{number}": f"holiday number {number}" for number in range(5)}
    assert ranked({"z": "a zebra", **texts}, "holiday zebra")[0] == "z"


def test_word_forms_and_parts_of_a_chinese_sentence_are_found() -> None:
    texts = {"a": "He was running", "b": "用户每周三打羽毛球", "c": "Cats sleep"}
    assert ranked(texts, "runs") == ["a"]
    assert ranked(texts, "羽毛球什么时候？") == ["b"]


def test_a_text_is_found_by_the_words_of_the_one_before_it_in_its_conversation() -> None:
    """The answer to a question seldom repeats its words."""
    texts = {"ask": "Which restaurant do you like?", "answer": "Luigi's, by far", "far": "Rain again"}
    assert ranked(texts, "restaurant") == ["ask"]
    assert ranked(texts, "restaurant", group="g")[:2] == ["ask", "answer"]


def test_who_is_named_and_the_day_that_is_named_come_first() -> None:
    ranking = Ranking()
    ranking.put("anna", "I sold the car", speaker="Anna Bell", date="2023-05-08")
    ranking.put("ben", "I sold the car", speaker="Ben", date="2023-06-01")
    ranking.put("other", "nothing of that", date="2023-06-01")
    assert ranking.search("whose car was it, Anna's?", 1)[0][0] == "anna"
    assert ranking.search("the car of Ben", 1)[0][0] == "ben"
    assert [name for name, _ in ranking.search("who sold a car on June 1?", 3)] == ["ben", "anna", "other"]
    assert [name for name, _ in ranking.search("昨天", 3, today="2023-05-09")] == ["anna"]


def test_a_score_is_the_share_of_the_question_that_a_text_answers() -> None:
    ranking = Ranking()
    for number in range(20):
        ranking.put(f"n{number}", f"word{number} more{number}")
    assert dict(ranking.search("word3 more3", 1)) == pytest.approx({"n3": 1.0})
    assert dict(ranking.search("word3 else", 1)) == pytest.approx({"n3": 0.5}, abs=0.1)


def test_only_what_is_accepted_counts_against_the_limit() -> None:
    ranking = Ranking()
    for number in range(9):
        ranking.put(f"n{number}", "tea " + "x " * number)
    every = ranking.search("tea", 9)
    assert ranking.search("tea", 2, accept=lambda name: name in ("n4", "n7")) == [
        found for found in every if found[0] in ("n4", "n7")
    ]


def test_nothing_is_found_without_a_shared_word() -> None:
    assert Ranking().search("tea", 5) == []
    for query in ("", "the of", "coffee", "的"):
        assert ranked({"a": "the tea of the house"}, query) == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.one_of(st.none(), st.lists(st.sampled_from(["tea", "milk", "cats", "dog", "茶叶"]), max_size=4)),
        st.sampled_from(["", "g", "h"]),
        st.sampled_from(["", "2023-05-08", "2023-05-10"]),
    ),
    max_size=30,
)


FROM_THE_MIDDLE: list[tuple[str, list[str] | None, str, str]] = [
    *((name, [word], "g", "") for name, word in zip("abcd", ["tea", "dog", "milk", "cats"], strict=True)),
    ("b", None, "", ""),
]


@settings(max_examples=150, deadline=None)
@example(FROM_THE_MIDDLE)
@given(STEPS)
def test_an_index_after_any_changes_is_one_built_anew(
    steps: list[tuple[str, list[str] | None, str, str]],
) -> None:
    changed, kept = Ranking(), dict[str, dict[str, str]]()
    for name, words, group, date in steps:
        kept.pop(name, None)
        if words is None:
            changed.remove(name)
        else:
            kept[name] = {"text": " ".join(words), "group": group, "speaker": name, "date": date}
            changed.put(name, **kept[name])
    anew = Ranking()
    for name, given_ in kept.items():
        anew.put(name, **given_)
    assert len(changed) == len(kept)
    for query in ("tea cats a", "milk on 8 May", "茶 dog"):
        scores = dict(changed.search(query, 50))
        assert scores == pytest.approx(dict(anew.search(query, 50)))
        assert scores.keys() <= kept.keys()
    for name in kept:
        changed.remove(name)
    left = {attribute: value for attribute, value in vars(changed).items() if attribute != "_next"}
    assert left.pop("_total") == pytest.approx(0)
    assert not any(left.values()), "nothing of a removed text is left"


def test_common_words_rank_what_rare_ones_found_as_if_all_were_weighed() -> None:
    """The short way round for long lists of texts gives the best ones all the same."""
    chance, ranking = random.Random(3), Ranking()
    for number in range(3000):
        ranking.put(f"n{number}", f"common {chance.choice('abcdef')}x {'none' if number % 5 else 'rare'}")
    ranking.put("best", "common ax rare treasure", group="g")
    ranking.put("both", "common ax rare")
    assert [name for name, _ in ranking.search("common ax rare treasure", 1)] == ["best"]
    found = ranking.search("common ax rare treasure", 60)
    assert {round(score, 6) for _, score in found[1:]} == {round(dict(found)["both"], 6)}


@pytest.mark.parametrize(
    "piece", ["a", "9", "的", "\u0300", "x ", "1 day ", "9天", "2023-", "may ", "'s", "周", "\U0001f642"]
)
def test_hostile_texts_cost_what_they_are_long(piece: str) -> None:
    """Four times the text takes not much more than four times the time; quadratic would be sixteen."""

    def cost(length: int) -> float:
        text, times = piece * (length // len(piece)), []
        for _ in range(3):
            ranking = Ranking()
            began = time.process_time()
            ranking.put("a", text)
            ranking.search(text, 5, today="2026-01-01")
            times.append(time.process_time() - began)
        return min(times)

    assert cost(120_000) < 10 * max(cost(30_000), 0.004)


def test_the_figure_of_memory_bank_holds() -> None:
    """Of the texts that answer a question so many, in percent, are among the first five and ten found."""
    five, ten = recall(memory_bank())
    assert five >= 95
    assert ten >= 98
