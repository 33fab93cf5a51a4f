"""第 7 天：记忆。分层的提示词，放进窗口的谈话，记得住人的文件。"""

from day7_memory.chat import AgentReply
from day7_memory.context import Layer, SystemPromptBuilder
from day7_memory.long_term import LongTermMemory
from day7_memory.models import MemoryRecord, MemorySearchResult, MemoryStoreError
from day7_memory.short_term import ShortTermMemory, summary_request
from day7_memory.tokens import estimate_tokens

__all__ = ["AgentReply", "Layer", "LongTermMemory", "MemoryRecord", "MemorySearchResult", "MemoryStoreError"]
__all__ += ["ShortTermMemory", "SystemPromptBuilder", "estimate_tokens", "summary_request"]
