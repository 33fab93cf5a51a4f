"""The agent: a model, the loop around it, and the turns that run in it."""

from typing import TYPE_CHECKING

from miniclaw.lazy import exports

if TYPE_CHECKING:
    from miniclaw.agent.config import AgentConfig
    from miniclaw.agent.demo import DemoProvider
    from miniclaw.agent.fallback import FallbackProvider
    from miniclaw.agent.openai_provider import OpenAIProvider
    from miniclaw.agent.providers import LLMChunk, LLMProvider, LLMResponse, ToolCall
    from miniclaw.agent.reply import AgentReply
    from miniclaw.agent.runtime import AgentRuntime
    from miniclaw.agent.scripted import ScriptedProvider
    from miniclaw.agent.turn import TurnRunner

__all__ = [
    "AgentConfig",
    "AgentReply",
    "AgentRuntime",
    "DemoProvider",
    "FallbackProvider",
    "LLMChunk",
    "LLMProvider",
    "LLMResponse",
    "OpenAIProvider",
    "ScriptedProvider",
    "ToolCall",
    "TurnRunner",
]

__getattr__ = exports(
    __name__,
    {
        "AgentConfig": "config",
        "AgentReply": "reply",
        "AgentRuntime": "runtime",
        "DemoProvider": "demo",
        "FallbackProvider": "fallback",
        "LLMChunk": "providers",
        "LLMProvider": "providers",
        "LLMResponse": "providers",
        "OpenAIProvider": "openai_provider",
        "ScriptedProvider": "scripted",
        "ToolCall": "providers",
        "TurnRunner": "turn",
    },
)
