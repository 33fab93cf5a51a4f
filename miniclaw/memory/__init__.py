"""Memory: what the model sees of a conversation, and what is remembered beyond it."""

from miniclaw.memory.context import SystemPromptBuilder
from miniclaw.memory.long_term import LongTermMemory
from miniclaw.memory.models import MemoryRecord, MemorySearchResult
from miniclaw.memory.short_term import ShortTermMemory
from miniclaw.memory.tokens import estimate_tokens
from miniclaw.memory.tools import memory_tools

__all__ = [
    "LongTermMemory",
    "MemoryRecord",
    "MemorySearchResult",
    "ShortTermMemory",
    "SystemPromptBuilder",
    "estimate_tokens",
    "memory_tools",
]
