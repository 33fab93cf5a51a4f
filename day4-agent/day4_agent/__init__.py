"""第 4 天：智能体。一个模型，一组工具，绕着它们的循环。"""

from day4_agent.config import AgentConfig
from day4_agent.fallback import FallbackProvider
from day4_agent.openai_provider import OpenAIProvider
from day4_agent.providers import LLMChunk, LLMProvider, LLMResponse, ModelError, ToolCall
from day4_agent.runtime import AgentRuntime, Finished, Stop, ToolFinished, ToolStarted
from day4_agent.scripted import ScriptedProvider
from day4_agent.toolbox import ToolBox, ToolResult
from day4_agent.transcript import SessionTranscript, Transcript, legal

__all__ = ["AgentConfig", "AgentRuntime", "FallbackProvider", "Finished", "LLMChunk", "LLMProvider"]
__all__ += ["LLMResponse", "ModelError", "OpenAIProvider", "ScriptedProvider", "SessionTranscript", "Stop"]
__all__ += ["ToolBox", "ToolCall", "ToolFinished", "ToolResult", "ToolStarted", "Transcript", "legal"]
