"""第 2 步：一直聊。模型不记得上一句，记得的是我们：每次都把整个历史再发一遍。

运行：python example/steps/agent2.py    输入 exit 或 quit 离开
"""

import os
import sys
from types import SimpleNamespace
from typing import Any

from openai import OpenAI, OpenAIError

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
INSTRUCTIONS = "你是一家小店的客服，回答要短。"


class FakeClient:
    """没有密钥时的替身：数一数历史里有几句话，好让人看见历史真的发过去了。"""

    def __init__(self) -> None:
        self.responses = self

    def create(self, **request: Any) -> Any:
        said = [item["content"] for item in request["input"] if item["role"] == "user"]
        text = f"（替身）这是您的第 {len(said)} 句。"
        return SimpleNamespace(output_text=text + (f"上一句是“{said[-2]}”。" if len(said) > 1 else ""))


def main() -> None:
    """从这里开始。"""
    base_url = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"  # 空的就是没有
    client: Any = OpenAI(base_url=base_url) if os.environ.get("OPENAI_API_KEY") else FakeClient()
    history: list[dict[str, str]] = []
    while True:  # 对话循环：人说一句，它答一句
        try:
            line = input("你：").strip()
        except (EOFError, OSError, KeyboardInterrupt):  # 说完了，终端没了，Ctrl+C
            break
        if line in ("exit", "quit"):
            break
        if not line:
            continue
        history.append({"role": "user", "content": line})
        response = client.responses.create(model=MODEL, instructions=INSTRUCTIONS, input=history)
        if isinstance(response, str):
            raise OpenAIError("来的是一张网页。OPENAI_BASE_URL 要以 /v1 结尾。")
        history.append({"role": "assistant", "content": response.output_text})
        print("店：", response.output_text)
    print("再见")


if __name__ == "__main__":
    try:
        main()
    except (OpenAIError, UnicodeEncodeError) as error:  # 连不上、被拒绝，或者密钥里有不是 ASCII 的字
        sys.exit(f"模型没有答上来（看看 OPENAI_API_KEY 和 OPENAI_BASE_URL）：{error}")
    except KeyboardInterrupt:
        sys.exit(130)
