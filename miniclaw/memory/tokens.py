"""Token counts for the context budget: an estimate that needs neither a download nor a tokeniser's tables."""

from functools import lru_cache
from typing import Final

from miniclaw.tokens import estimate_tokens

__all__ = ["cut_to_tokens", "estimate_tokens"]

CUT: Final = "\n[… cut to fit]"


@lru_cache(maxsize=64)
def cut_to_tokens(text: str, tokens: int, mark: str = CUT) -> str:
    """The text itself, or its beginning with a word on the cut where it costs more; empty if not even that fits."""
    if estimate_tokens(text) <= tokens:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if estimate_tokens(text[:middle] + mark) <= tokens else (low, middle - 1)
    return text[:low] + mark if low else ""
