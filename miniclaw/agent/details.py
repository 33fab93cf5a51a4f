"""Structured thoughts of an answer, which go back to the model as they came. No I/O."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["STRUCTURED", "Details"]

MOST_DETAILS: Final = 1000
"""Pieces that are kept."""
_TEXTS: Final = ("text", "summary", "thinking")
"""What can be shown, of which each piece has one."""
_GROWING: Final = frozenset({*_TEXTS, "data"})
STRUCTURED: Final = {"details": "reasoning_details", "blocks": "thinking_blocks"}
"""What OpenRouter and LiteLLM call them, by what they are called in a log."""


class Details:
    """Puts the pieces of each together."""

    def __init__(self) -> None:
        self._found: list[dict[str, Any]] = []
        self._parts: list[dict[str, list[str]]] = []
        """Of each of them, the texts that come in pieces."""

    def take(self, pieces: list[Any]) -> tuple[str, int]:
        """Take pieces; returns what of them can be shown, and how many characters more are kept."""
        shown: list[str] = []
        hidden = 0
        for piece in pieces:
            if not isinstance(piece, dict) or len(self._found) >= MOST_DETAILS:
                continue
            text = next((piece[key] for key in _TEXTS if piece.get(key)), "")
            shown.append(text if isinstance(text, str) else "")
            if self._begins(piece):
                self._found.append({})
                self._parts.append({})
            for key, value in piece.items():
                if key in _GROWING and isinstance(value, str):
                    self._parts[-1].setdefault(key, []).append(value)
                    hidden += len(value)
                elif key not in self._found[-1] or value not in (None, self._found[-1][key]):
                    self._found[-1][key] = value
                    hidden += len(str(value))
        return "".join(shown), hidden - sum(map(len, shown))

    def whole(self) -> list[dict[str, Any]]:
        """All of them, in their order; without blocks that came unsigned, which no server takes back."""
        joined = [
            {**found, **{key: "".join(texts) for key, texts in parts.items()}}
            for found, parts in zip(self._found, self._parts, strict=True)
        ]
        return [one for one in joined if one.get("type") != "thinking" or one.get("signature")]

    def _begins(self, piece: dict[str, Any]) -> bool:
        """Whether a piece begins another one; a block of LiteLLM has no index, and ends with its signature."""
        last = self._found[-1] if self._found else None
        if last is None or any(last.get(key) != piece.get(key) for key in ("index", "type")):
            return True
        return piece.get("index") is None and (piece.get("type") != "thinking" or bool(last.get("signature")))
