"""Token counts for the context budget: an estimate that needs neither a download nor a tokeniser's tables."""

from miniclaw.text import estimate_tokens

__all__ = ["estimate_tokens"]
