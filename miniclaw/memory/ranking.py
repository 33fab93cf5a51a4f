"""Ranks short texts for a question by their words, those said around them, who said them, and when.

BM25 over each text together with its neighbours in the same conversation, which count the less the farther
they are: a question is often answered in the turn behind the one that shares its words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, nlargest
from typing import Final

from miniclaw.memory.dates import DateHint
from miniclaw.text import fold, tokenize

__all__ = ["Passage", "Ranking"]

SATURATION: Final = 1.2
"""How soon more of the same term stops to count (k1)."""
LENGTH: Final = 0.4
"""How much a long text must share more than a short one (b)."""
NEAR: Final = ((1, 0.65), (2, 0.35), (-1, 0.5), (-2, 0.25))
"""How much of a text's words a later (1, 2) or earlier (-1, -2) text of its conversation gets."""
SPEAKER: Final = 0.2
"""What naming the speaker adds, in units of the best score."""
DATE: Final = 0.6
"""What naming the day adds, in units of the best score."""
COMMON: Final = 100
"""Texts with a term from which on it only ranks what rarer terms have found, if that is enough."""
POOL: Final = 200
"""What is enough: so many of the best texts, and those as good as the last of them."""


@dataclass(slots=True)
class Passage:
    """A text that can be found."""

    name: str
    group: str
    speaker: str
    date: str
    """`YYYY-MM-DD`."""
    terms: tuple[str, ...]
    """Each once."""
    size: int
    """Its own terms, repeats counted."""
    length: float
    """The same with the share of its neighbours' that it gets."""
    gives: dict[int, float] = field(default_factory=dict)
    """Passages that get a share of this one's words."""
    gets: dict[int, float] = field(default_factory=dict)


class Ranking:
    """An index in memory; adding, replacing and removing cost what the text is long."""

    def __init__(self) -> None:
        self._passages: dict[int, Passage] = {}
        self._numbers: dict[str, int] = {}
        self._postings: dict[str, dict[int, int]] = {}
        self._groups: dict[str, list[int]] = {}
        self._dates: dict[str, set[int]] = {}
        self._next = 0
        self._total = 0.0

    def __len__(self) -> int:
        return len(self._passages)

    def put(self, name: str, text: str, *, group: str = "", speaker: str = "", date: str = "") -> None:
        """Add a text, or replace the one of that name.

        Args:
            name: what a search returns.
            text: what is searched.
            group: the conversation it belongs to, whose texts are added in their order; empty = none.
            speaker: who said it.
            date: when, as `YYYY-MM-DD`.
        """
        self.remove(name)
        number, self._next = self._next, self._next + 1
        terms = Counter(tokenize(text))
        size = terms.total()
        self._passages[number] = Passage(name, group, fold(speaker), date, tuple(terms), size, size)
        self._numbers[name] = number
        self._total += size
        for term, times in terms.items():
            self._postings.setdefault(term, {})[number] = times
        if date:
            self._dates.setdefault(date, set()).add(number)
        if group:
            line = self._groups.setdefault(group, [])
            line.append(number)
            self._link_across(line, len(line) - 1)

    def remove(self, name: str) -> None:
        """Forget a text; an unknown name is fine."""
        number = self._numbers.pop(name, None)
        if number is None:
            return
        passage = self._passages[number]
        if passage.group:
            self._leave(number, passage.group)
        del self._passages[number]
        self._total -= passage.length
        for term in passage.terms:
            postings = self._postings[term]
            del postings[number]
            if not postings:
                del self._postings[term]
        if passage.date:
            self._dates[passage.date].remove(number)
            if not self._dates[passage.date]:
                del self._dates[passage.date]

    def search(
        self, query: str, limit: int, *, today: str = "", accept: Callable[[str], bool] | None = None
    ) -> list[tuple[str, float]]:
        """The names of the best texts with their scores, best first.

        A score is the share of the question's words, by weight, that a text has: 1 for a repeat of the
        question, more where day or speaker fit too.

        Args:
            query: what is asked.
            limit: how many.
            today: `YYYY-MM-DD`, for what is said relative to it, such as "yesterday".
            accept: whether a name may be among them.
        """
        if not self._passages:
            return []
        terms = list(dict.fromkeys(tokenize(query)))
        scores = self._scores(terms)
        whole = sum(self._weight(len(self._postings.get(term, ()))) for term in terms) or 1.0
        best = max(scores.values(), default=whole)
        found = {number: score / best for number, score in scores.items()}
        self._add_dates(found, DateHint.of(query, today))
        self._add_speakers(found, query)
        named = ((score * best / whole, number) for number, score in found.items())
        ranked = nlargest(limit, named) if accept is None else self._accepted(named, limit, accept)
        return [(self._passages[number].name, score) for score, number in ranked]

    def _accepted(
        self, ranked: Iterable[tuple[float, int]], limit: int, accept: Callable[[str], bool]
    ) -> list[tuple[float, int]]:
        heap = [(-score, -number) for score, number in ranked]
        heapify(heap)
        chosen: list[tuple[float, int]] = []
        while heap and len(chosen) < limit:
            score, number = heappop(heap)
            if accept(self._passages[-number].name):
                chosen.append((-score, -number))
        return chosen

    def _weight(self, having: int) -> float:
        """What a term tells that so many texts have."""
        return math.log(1 + (len(self._passages) - having + 0.5) / (having + 0.5))

    def _link_across(self, line: list[int], place: int) -> None:
        """Let the texts before `place` and those from it on share their words."""
        for distance, weight in NEAR:
            span = abs(distance)
            for second in range(place, min(place + span, len(line))):
                if second >= span:
                    earlier, later = line[second - span], line[second]
                    giver, taker = (earlier, later) if distance > 0 else (later, earlier)
                    self._share(giver, taker, weight)

    def _share(self, giver: int, taker: int, weight: float) -> None:
        """Set what share of the giver's words the taker gets."""
        source, target = self._passages[giver], self._passages[taker]
        more = (weight - source.gives.get(taker, 0.0)) * source.size
        target.length += more
        self._total += more
        if weight:
            source.gives[taker] = target.gets[giver] = weight
        else:
            del source.gives[taker], target.gets[giver]

    def _leave(self, number: int, group: str) -> None:
        passage, line = self._passages[number], self._groups[group]
        for taker in tuple(passage.gives):
            self._share(number, taker, 0.0)
        for giver in tuple(passage.gets):
            self._share(giver, number, 0.0)
        place = line.index(number)
        del line[place]
        self._link_across(line, place)
        if not line:
            del self._groups[group]

    def _scores(self, terms: list[str]) -> dict[int, float]:
        known = [self._postings[term] for term in terms if term in self._postings]
        scores: dict[int, float] = {}
        average = self._total / max(1, len(self._passages)) or 1.0
        short, slope = SATURATION * (1 - LENGTH), SATURATION * LENGTH / average
        passages, around = self._passages, None
        for postings in sorted(known, key=len):
            weight = self._weight(len(postings)) * (SATURATION + 1)
            if len(postings) > COMMON and len(scores) >= POOL and around is None:
                least = nlargest(POOL, scores.values())[-1]
                scores = {number: score for number, score in scores.items() if score >= least}
                around = self._around(scores)
            times = self._spread(postings) if around is None else _among(postings, around)
            for number, often in times.items():
                damping = short + slope * passages[number].length
                scores[number] = scores.get(number, 0.0) + weight * often / (often + damping)
        return scores

    def _spread(self, postings: dict[int, int]) -> dict[int, float]:
        """How often a term counts for each text that has it or stands near one that does."""
        times: dict[int, float] = {}
        passages, so_far = self._passages, times.get
        for number, count in postings.items():
            times[number] = so_far(number, 0.0) + count
            for other, weight in passages[number].gives.items():
                times[other] = so_far(other, 0.0) + weight * count
        return times

    def _around(self, wanted: Iterable[int]) -> dict[int, list[tuple[int, float]]]:
        """By text: which of the wanted ones its words count for, and how much."""
        around: dict[int, list[tuple[int, float]]] = {}
        for number in wanted:
            around.setdefault(number, []).append((number, 1.0))
            for giver, weight in self._passages[number].gets.items():
                around.setdefault(giver, []).append((number, weight))
        return around

    def _add_dates(self, found: dict[int, float], hint: DateHint | None) -> None:
        if hint is None:
            return
        for date, numbers in self._dates.items():
            fit = hint.fit(date)
            if not fit:
                continue
            for number in numbers:
                if fit >= 1.0 or number in found:
                    found[number] = found.get(number, 0.0) + DATE * fit

    def _add_speakers(self, found: dict[int, float], query: str) -> None:
        asked = fold(query)
        named: dict[str, bool] = {}
        for number in found:
            speaker = self._passages[number].speaker
            if speaker not in named:
                first = speaker.split(" ")[0]
                named[speaker] = bool(first) and first in asked
            if named[speaker]:
                found[number] += SPEAKER


def _among(postings: dict[int, int], around: dict[int, list[tuple[int, float]]]) -> dict[int, float]:
    """What `_spread` gives, for the texts of `around` only."""
    times: dict[int, float] = {}
    so_far = times.get
    for giver in postings.keys() & around.keys():
        count = postings[giver]
        for number, weight in around[giver]:
            times[number] = so_far(number, 0.0) + weight * count
    return times
