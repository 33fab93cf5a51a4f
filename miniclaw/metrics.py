"""Counters and histograms in the text format of Prometheus, version 0.0.4.

The format is that of https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["CONTENT_TYPE", "Counter", "Histogram", "Labels", "gauge"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]
"""Names and values, in a fixed order."""


class Counter:
    """A number that only rises, for each set of labels."""

    def __init__(self, name: str, about: str) -> None:
        self._head = _head(name, about, "counter")
        self._name = name
        self._values: dict[Labels, float] = {}

    def add(self, amount: float = 1, **labels: str) -> None:
        """Count; labels must be of a few values only."""
        key = tuple(labels.items())
        self._values[key] = self._values.get(key, 0) + amount

    def lines(self) -> list[str]:
        """As Prometheus reads it."""
        return [*self._head, *(_line(self._name, key, value) for key, value in self._values.items())]


class Histogram:
    """How many of the values seen were at most so large."""

    def __init__(self, name: str, about: str, bounds: Iterable[float]) -> None:
        self._head = _head(name, about, "histogram")
        self._name = name
        self._bounds = [*sorted(bounds), math.inf]
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self) -> list[str]:
        """As Prometheus reads it."""
        lines, total = list(self._head), 0
        for bound, count in zip(self._bounds, self._counts, strict=True):
            total += count
            shown = "+Inf" if bound == math.inf else f"{bound:g}"
            lines.append(_line(f"{self._name}_bucket", (("le", shown),), total))
        return [*lines, _line(f"{self._name}_sum", (), self._sum), _line(f"{self._name}_count", (), total)]


def gauge(name: str, about: str, values: Mapping[Labels, float]) -> list[str]:
    """Numbers as they are at this moment."""
    return [*_head(name, about, "gauge"), *(_line(name, key, value) for key, value in values.items())]


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _line(name: str, labels: Labels, value: float) -> str:
    marks = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{marks}}} {value:.12g}" if marks else f"{name} {value:.12g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
