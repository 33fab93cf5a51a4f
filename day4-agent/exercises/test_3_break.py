"""运行：pytest exercises/test_3_break.py"""

from collections.abc import Mapping
from typing import Any

import pytest

from day4_agent import (
    AgentConfig,
    AgentRuntime,
    Finished,
    ModelError,
    ScriptedProvider,
    SessionTranscript,
    ToolResult,
)
from ex_3_break import SCRIPTS

HINT = "提示：在 runtime.py 里找到这个结局是哪一行，再想模型要怎么说才会走到那里。"


class AnyBox:
    def get_openai_tools(self) -> list[dict[str, Any]]:
        return []

    async def execute(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(content="处理中")


@pytest.mark.parametrize("ending", list(SCRIPTS))
async def test_the_script_leads_to_its_ending(ending: str) -> None:
    transcript = SessionTranscript([{"role": "user", "content": "到哪了"}])
    runtime = AgentRuntime(ScriptedProvider(SCRIPTS[ending]), AgentConfig(max_iterations=3, max_tool_calls=5))
    reached = ""
    try:
        async for event in runtime.run(transcript, AnyBox()):
            if isinstance(event, Finished) and event.stop is not None:
                reached = event.stop.limit
    except ModelError as error:
        reached = error.code
    told = " ".join(str(message["content"]) for message in transcript.messages() if message["role"] == "tool")
    assert reached == ending or (not reached and ending in told), HINT
