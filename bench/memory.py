"""How often the right memory is found, and what a search costs; no model.

    MEMBENCH_DATA=DIR python bench/memory.py

MemoryBank (Chinese) is in `tests/data`; LoCoMo is measured where `MEMBENCH_DATA` holds `locomo/locomo10_orig.json`
(https://github.com/snap-research/locomo, CC BY-NC 4.0, which is why it is not here).
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from miniclaw.memory.ranking import Ranking  # noqa: E402 - behind the path

BANK = ROOT / "tests" / "data" / "memorybank"


@dataclass
class Case:
    """One user: texts as (id, text, conversation, speaker, date), and questions with the ids that answer them."""

    texts: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    questions: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)


def memory_bank(directory: Path = BANK) -> list[Case]:
    """The Chinese part of MemoryBank."""
    cases: dict[str, Case] = {}
    for name, user in json.loads((directory / "memory_bank_cn.json").read_text(encoding="utf-8")).items():
        cases[name] = Case(
            [
                (f"{day[5:]}:{number}", f"{name}: {turn['query']}\nAI: {turn['response']}", day, name, day)
                for day, turns in user["history"].items()
                for number, turn in enumerate(turns)
            ]
        )
    for line in (directory / "gold_cn.jsonl").read_text(encoding="utf-8").splitlines():
        gold = json.loads(line)
        cases[gold["user"]].questions.append((gold["question"], tuple(gold["gold"])))
    return [case for case in cases.values() if case.questions]


def locomo(path: Path) -> list[Case]:
    """LoCoMo, a text a turn; questions of category 5 have no answer and are left out."""
    cases = []
    for sample in json.loads(path.read_text(encoding="utf-8")):
        case, talk = Case(), sample["conversation"]
        numbers = sorted(
            int(key[8:]) for key, value in talk.items() if re.fullmatch(r"session_\d+", key) and value
        )
        for number in numbers:
            when = re.search(r"(\d+ \w+),? (\d{4})", talk[f"session_{number}_date_time"])
            date = datetime.strptime(f"{when[1]} {when[2]}", "%d %B %Y").date().isoformat() if when else ""
            for turn in talk[f"session_{number}"]:
                shown = f" [image: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
                text = f"{turn['speaker']}: {turn['text']}{shown}"
                case.texts.append((turn["dia_id"], text, str(number), turn["speaker"], date))
        known = {text[0] for text in case.texts}
        for question in sample["qa"]:
            named = re.findall(r"D:?(\d+):0*(\d+)", " ".join(question.get("evidence") or ()))
            gold = tuple(dict.fromkeys(f"D{a}:{b}" for a, b in named if f"D{a}:{b}" in known))
            if question["category"] != 5 and gold:
                case.questions.append((question["question"], gold))
        cases.append(case)
    return cases


def recall(cases: list[Case], *, at: tuple[int, ...] = (5, 10)) -> list[float]:
    """The share, in percent, of the answering texts that are among the first so many found."""
    shares: list[list[float]] = [[] for _ in at]
    for case in cases:
        ranking = Ranking()
        for name, text, group, speaker, date in case.texts:
            ranking.put(name, text, group=group, speaker=speaker, date=date)
        for question, gold in case.questions:
            found = [name for name, _ in ranking.search(question, max(at))]
            for place, limit in enumerate(at):
                shares[place].append(len(set(gold) & set(found[:limit])) / len(gold))
    return [100 * statistics.mean(share) for share in shares]


def cost(count: int, cases: list[Case]) -> tuple[float, float]:
    """Milliseconds of CPU to add one text to `count`, and to search them (medians)."""
    texts = [text for case in cases for _, text, *_ in case.texts]
    questions = [question for case in cases for question, _ in case.questions][:60:4]
    words, chance = " ".join(texts[:500]).split(), random.Random(1)
    ranking, adding = Ranking(), []
    for number in range(count):
        text = f"{texts[number % len(texts)]} {' '.join(chance.choices(words, k=3))}"
        began = time.process_time_ns()
        ranking.put(f"m{number}", text, group=f"c{number // 30}")
        adding.append((time.process_time_ns() - began) / 1e6)
    searching = []
    for question in questions:
        began = time.process_time_ns()
        ranking.search(question, 10)
        searching.append((time.process_time_ns() - began) / 1e6)
    return statistics.median(adding[-1000:]), statistics.median(searching)


def main() -> None:
    """Print the tables."""
    bank = memory_bank()
    cases = {"MemoryBank zh": bank}
    path = Path(os.environ.get("MEMBENCH_DATA", "none")) / "locomo" / "locomo10_orig.json"
    if path.exists():
        cases["LoCoMo"] = locomo(path)
    print(f"{'recall, %':16} {'questions':>9} {'r@5':>6} {'r@10':>6}")
    for name, found in cases.items():
        five, ten = recall(found)
        print(f"{name:16} {sum(len(case.questions) for case in found):9} {five:6.1f} {ten:6.1f}")
    print(f"\n{'records':>16} {'add ms':>9} {'search ms':>9}")
    for count in (10_000, 100_000):
        adding, searching = cost(count, [case for found in cases.values() for case in found])
        print(f"{count:16} {adding:9.3f} {searching:9.2f}")


if __name__ == "__main__":
    main()
