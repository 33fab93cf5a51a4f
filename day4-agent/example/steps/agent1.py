"""第 1 步：问一次。先等它说完，再看它边想边说。

运行：python example/steps/agent1.py [要问的话]
有 OPENAI_API_KEY 就问真的模型（OPENAI_BASE_URL、OPENAI_MODEL 也认），没有就用下面的 FakeClient。
"""

import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from openai import OpenAI, OpenAIError

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
INSTRUCTIONS = "你是一家小店的客服，回答要短。"


class FakeClient:
    """没有密钥时的替身：形状和 OpenAI 客户端一样，话是写死的。"""

    def __init__(self) -> None:
        self.responses = self

    def create(self, *, stream: bool = False, **request: Any) -> Any:
        text = f"（替身）您问的是：{request['input']}"
        return self._pieces(text) if stream else SimpleNamespace(output_text=text)

    def _pieces(self, text: str) -> Iterator[SimpleNamespace]:
        for start in range(0, len(text), 4):
            yield SimpleNamespace(type="response.output_text.delta", delta=text[start : start + 4])


def main() -> None:
    """从这里开始。"""
    base_url = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"  # 空的就是没有
    client: Any = OpenAI(base_url=base_url) if os.environ.get("OPENAI_API_KEY") else FakeClient()
    question = " ".join(sys.argv[1:]) or "你们几点开门？"

    response = client.responses.create(model=MODEL, instructions=INSTRUCTIONS, input=question)
    if isinstance(response, str):
        raise OpenAIError("来的是一张网页。OPENAI_BASE_URL 要以 /v1 结尾。")
    print("一次答完：", response.output_text)

    print("边想边说：", end=" ")
    events = client.responses.create(model=MODEL, instructions=INSTRUCTIONS, input=question, stream=True)
    for event in events:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
    print()


if __name__ == "__main__":
    try:
        main()
    except (OpenAIError, UnicodeEncodeError) as error:  # 连不上、被拒绝，或者密钥里有不是 ASCII 的字
        sys.exit(f"模型没有答上来（看看 OPENAI_API_KEY 和 OPENAI_BASE_URL）：{error}")
    except KeyboardInterrupt:
        sys.exit(130)
