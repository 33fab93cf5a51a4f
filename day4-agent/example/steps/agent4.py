"""第 4 步：两个循环套在一起。外面一圈是人在说话，里面一圈是模型在用工具。

运行：python example/steps/agent4.py    输入 exit 或 quit 离开
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

from openai import OpenAI, OpenAIError

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
INSTRUCTIONS = "你是一家小店的客服，回答要短。要知道时间就用工具，不要猜。"
MAX_TURNS = 8


def get_current_time(timezone: str) -> str:
    """某个时区现在几点。"""
    return datetime.now(UTC if timezone == "UTC" else ZoneInfo(timezone)).strftime("%Y-%m-%d %H:%M")


TOOLS: dict[str, Callable[..., str]] = {"get_current_time": get_current_time}
SCHEMAS = [
    {
        "type": "function",
        "name": "get_current_time",
        "description": "某个时区现在几点。",
        "parameters": {
            "type": "object",
            "properties": {"timezone": {"type": "string", "description": "例如 Asia/Shanghai"}},
            "required": ["timezone"],
            "additionalProperties": False,
        },
    }
]


class FakeClient:
    """没有密钥时的替身：话里有“几点”就要工具，别的话就数数。"""

    def __init__(self) -> None:
        self.responses = self

    def create(self, **request: Any) -> Any:
        last, said = request["input"][-1], 0
        for item in request["input"]:
            said += isinstance(item, dict) and item.get("role") == "user"
        if last.get("type") == "function_call_output":
            return SimpleNamespace(output=[], output_text=f"（替身）现在是 {last['output']}。")
        if "几点" not in last["content"]:
            return SimpleNamespace(output=[], output_text=f"（替身）这是您的第 {said} 句。")
        arguments = json.dumps({"timezone": "UTC"})
        call = SimpleNamespace(
            type="function_call", call_id=f"c{said}", name="get_current_time", arguments=arguments
        )
        return SimpleNamespace(output=[call], output_text="")


def run_tool(name: str, arguments: str) -> str:
    """执行一个调用；怎么错都是一段文字，模型读了能改。"""
    if name not in TOOLS:
        return f"Error: there is no tool {name}"
    try:
        return TOOLS[name](**json.loads(arguments))
    except Exception as error:  # noqa: BLE001 - 工具出错不该让程序倒下
        return f"Error: {error}"


def answer(client: Any, history: list[Any]) -> str:
    """执行循环（里面一圈）；历史是外面那一圈的，走完了还在。"""
    for _ in range(MAX_TURNS):
        response = client.responses.create(
            model=MODEL, instructions=INSTRUCTIONS, input=history, tools=SCHEMAS
        )
        if isinstance(response, str):
            raise OpenAIError("来的是一张网页。OPENAI_BASE_URL 要以 /v1 结尾。")
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            history.append({"role": "assistant", "content": response.output_text})
            return str(response.output_text)
        history += response.output
        for call in calls:
            result = run_tool(call.name, call.arguments)
            print(f"  [工具] {call.name} {call.arguments} -> {result}")
            history.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    return "（试了太多次，先停在这里。）"


def main() -> None:
    """从这里开始。"""
    base_url = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"  # 空的就是没有
    client: Any = OpenAI(base_url=base_url) if os.environ.get("OPENAI_API_KEY") else FakeClient()
    history: list[Any] = []
    while True:  # 对话循环（外面一圈）
        try:
            line = input("你：").strip()
        except (EOFError, OSError, KeyboardInterrupt):  # 说完了，终端没了，Ctrl+C
            break
        if line in ("exit", "quit"):
            break
        if line:
            history.append({"role": "user", "content": line})
            print("店：", answer(client, history))
    print("再见")


if __name__ == "__main__":
    try:
        main()
    except (OpenAIError, UnicodeEncodeError) as error:  # 连不上、被拒绝，或者密钥里有不是 ASCII 的字
        sys.exit(f"模型没有答上来（看看 OPENAI_API_KEY 和 OPENAI_BASE_URL）：{error}")
    except KeyboardInterrupt:
        sys.exit(130)
