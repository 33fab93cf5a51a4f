"""第 5 步：关了再开还记得。用户说“记住”，模型才调用 save_preference，写进 user_memory.json。

运行：python example/steps/agent5.py    说“记住我叫小林”，exit 离开；再运行一次，问“我叫什么”
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

from openai import OpenAI, OpenAIError

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
INSTRUCTIONS = (
    "你是一家小店的客服，回答要短。要知道时间就用工具，不要猜。"
    "只有用户明确说“记住”的时候，才调用 save_preference。"
)
MAX_TURNS = 8
MEMORY = Path("user_memory.json")  # 在当前目录里，可以打开来看、来改


def get_current_time(timezone: str) -> str:
    """某个时区现在几点。"""
    return datetime.now(UTC if timezone == "UTC" else ZoneInfo(timezone)).strftime("%Y-%m-%d %H:%M")


def load_memory() -> dict[str, str]:
    """记住的东西；文件坏了就挪到一边，说一声：人还能修好它，不能让下一次保存盖掉。"""
    try:
        memory = json.loads(MEMORY.read_text(encoding="utf-8-sig"))  # 记事本会在开头加 BOM
        if isinstance(memory, dict):
            return memory
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        pass
    aside = MEMORY.with_name(f"{MEMORY.name}.{datetime.now(UTC):%Y%m%d%H%M%S}.corrupt")
    MEMORY.replace(aside)
    print(f"  [记忆] {MEMORY} 读不懂，挪到了 {aside}")
    return {}


def save_preference(key: str, value: str) -> str:
    """先写一个新文件再换名：写到一半断电，旧的还在。"""
    memory = {**load_memory(), key: value}
    fresh = MEMORY.with_suffix(".tmp")
    fresh.write_text(json.dumps(memory, ensure_ascii=False, indent=2), encoding="utf-8")
    fresh.replace(MEMORY)
    return f"已记住：{key} = {value}"


def schema(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """工具多起来，清单就值得用一个函数来写。"""
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {
                one: {"type": "string", "description": about} for one, about in parameters.items()
            },
            "required": list(parameters),
            "additionalProperties": False,
        },
    }


TOOLS: dict[str, Callable[..., str]] = {
    "get_current_time": get_current_time,
    "save_preference": save_preference,
}
SCHEMAS = [
    schema("get_current_time", "某个时区现在几点。", timezone="例如 Asia/Shanghai"),
    schema(
        "save_preference", "把用户要你记住的一件事存下来。", key="什么事，例如 称呼", value="内容，例如 小林"
    ),
]


class FakeClient:
    """没有密钥时的替身：听见“记住”就存，听见“几点”就看表，别的就把记得的背一遍。"""

    def __init__(self) -> None:
        self.responses = self

    def create(self, **request: Any) -> Any:
        last, number = request["input"][-1], len(request["input"])
        if last.get("type") == "function_call_output":
            return SimpleNamespace(output=[], output_text=f"（替身）好的。{last['output']}")
        said, name, arguments = last["content"], "", {}
        if "记住" in said:
            about = said.partition("记住")[2].strip("，。：: ")
            key, value = ("称呼", about.removeprefix("我叫")) if about.startswith("我叫") else ("备注", about)
            name, arguments = "save_preference", {"key": key, "value": value}
        elif "几点" in said:
            name, arguments = "get_current_time", {"timezone": "UTC"}
        else:
            known = request["instructions"].partition("记得的：")[2]
            return SimpleNamespace(output=[], output_text=f"（替身）我记得：{known or '什么也没有'}")
        raw = json.dumps(arguments, ensure_ascii=False)
        call = SimpleNamespace(type="function_call", call_id=f"c{number}", name=name, arguments=raw)
        return SimpleNamespace(output=[call], output_text="")


def instructions() -> str:
    """每次请求都重新读一遍：这一轮里刚记住的，下一句就用得上。"""
    memory = load_memory()
    return INSTRUCTIONS + (f"\n记得的：{json.dumps(memory, ensure_ascii=False)}" if memory else "")


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
            model=MODEL, instructions=instructions(), input=history, tools=SCHEMAS
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
